"""Tensors on a grid: what goes in comes out whatever is held, in little more than its entropy."""

import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import grid, grids, other_codes

from ternfed.quantize.grid import LARGEST, Grid, exponents_for, on_grid
from ternfed.wire import Kind, Message, Slot, decode, dense, describe, encode, grid_stream, same, save_tern, schema_of
from ternfed.wire import numbers as lists
from ternfed.wire.form import Coded
from ternfed.wire.grid import GRID
from ternfed.wire.groups import groups_of
from ternfed.wire.message import locate
from ternfed.wire.tern import parse_tern, tern_bytes

NUMBERS = st.one_of(st.integers(-9, 9), st.integers(-600, 600), st.integers(-lists.MOST, lists.MOST))


def rounded(shape, bits, seed=0, *, rows=False, scale=1.0, at_random=True) -> Grid:
    """Normal differences on a grid of so many bits, as an algorithm makes them."""
    source = torch.Generator().manual_seed(seed)
    value = scale * torch.randn(shape, generator=source)
    largest = value.abs().flatten(1).amax(1) if rows else value.abs().max()
    return on_grid(value, exponents_for(largest, bits), source if at_random else None)


def entropy(*groups) -> float:
    """Bytes that no order-0 code goes below, one model per group."""
    total = 0.0
    for numbers in groups:
        counts = np.unique(np.asarray(numbers).reshape(-1), return_counts=True)[1]
        total += float((counts * np.log2(counts.sum() / counts)).sum())
    return total / 8


class TestLists:
    @given(st.lists(NUMBERS, max_size=80), st.integers(1, lists.FINEST))
    @settings(max_examples=300, deadline=None)
    def test_any_numbers_come_back_with_buckets_of_any_fineness(self, numbers, fine):
        flat = np.array(numbers, np.int32)
        model = lists.histogram([flat]).model(fine)
        coder = lists.constriction.stream.stack.AnsCoder()
        lists.push(coder, flat, model)
        again, end = lists.read_model(memoryview(model.write()), 0, len(flat))
        assert end == len(model.write())
        assert (again.fine, again.low, again.counts.tolist()) == (fine, model.low, model.counts.tolist())
        assert lists.pop(coder, len(flat), again).tolist() == numbers
        assert coder.is_empty()

    @given(st.integers(0, lists.MOST), st.integers(1, lists.FINEST))
    def test_buckets_follow_each_other_without_gaps(self, size, fine):
        bucket = lists.bucket_of(size, fine)
        (start, after), (width, _) = lists.bounds(np.array([bucket, bucket + 1]), fine)
        assert start <= size < after
        assert after - start == 1 << width

    def test_blocks_follow_each_other(self):
        numbers = np.random.default_rng(0).normal(0, 300, 2 * lists.BLOCK + 5).round().astype(np.int32)
        model = lists.histogram([numbers]).best()
        coder = lists.constriction.stream.stack.AnsCoder()
        lists.push(coder, numbers, model)
        assert np.array_equal(lists.pop(coder, len(numbers), model), numbers)

    def test_the_cost_is_known_beforehand(self):
        rng = np.random.default_rng(1)
        for size, spread in ((100, 1), (5_000, 3), (5_000, 200), (20_000, 30_000)):
            numbers = rng.normal(0, spread, size).round().astype(np.int32)
            model = lists.histogram([numbers]).best()
            coder = lists.constriction.stream.stack.AnsCoder()
            lists.push(coder, numbers, model)
            really = 32 * len(coder.get_compressed()) + 8 * len(model.write())
            assert abs(really - model.bits) < 64 + 0.001 * model.bits


class TestRoundTrips:
    @given(grids(), st.integers(0, 99), st.floats(0, 1))
    @settings(max_examples=300, deadline=None)
    def test_any_grid_comes_back_given_anything(self, value, seed, share):
        message = Message({"w": value})
        schema = schema_of(message)
        for reference in (None, {}, other_codes(message, seed, share), {"w": torch.zeros(value.codes.shape)}):
            data = encode(message, schema, reference=reference)
            assert same(decode(data, schema, reference=reference), message)

    @pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_a_reference_is_what_it_is_as_float32(self, kind):
        value = rounded((40, 50), 8, rows=True)
        message, near = Message({"w": value}), dense(value).to(kind)
        near[0, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0], dtype=kind)
        schema = schema_of(message)
        data = encode(message, schema, reference={"w": near})
        assert locate(data, schema).sections["grid"].given is not None
        plain = near.float()
        plain[0, :4] = 0
        assert same(decode(data, schema, reference={"w": plain}), message)
        assert same(decode(data, schema, reference={"w": near.float().double()}), message)

    def test_a_reference_can_be_the_message_before(self):
        first, second = rounded((30, 40), 8), rounded((30, 40), 8)
        second = second._replace(codes=second.codes + (torch.rand(30, 40) < 0.1).int())
        schema = schema_of(Message({"w": first}))
        data = encode(Message({"w": second}), schema, reference=Message({"w": first}))
        assert same(decode(data, schema, reference=Message({"w": first})), Message({"w": second}))
        assert len(data) < 0.3 * len(encode(Message({"w": second}), schema))

    def test_a_reference_stays_when_its_source_trains_on(self):
        held = torch.ones(50)
        kept = GRID.hold(schema_of(Message({"w": grid(np.ones(50))})).slots, {"w": held}, True)
        held.zero_()
        assert kept.flat.tolist() == [1.0] * 50

    def test_slots_that_are_not_held_are_coded_as_they_are(self):
        message = Message({"a": rounded((30, 40), 8), "b": rounded((500,), 3), "c": rounded((40, 30), 8, rows=True)})
        schema = schema_of(message)
        for names in ("a", "ac", "abc"):
            reference = {name: dense(message.tensors[name]) for name in names}
            data = encode(message, schema, reference=reference)
            assert locate(data, schema).sections["grid"].given is not None
            assert same(decode(data, schema, reference=reference), message)

    def test_a_useless_reference_is_left_out(self):
        """As in an upload of differences, where the broadcast has the weights themselves under the same names."""
        message = Message({"w": rounded((30, 40), 3)})
        schema = schema_of(message)
        data = encode(message, schema, reference={"w": torch.randn(30, 40)})
        assert data == encode(message, schema)

    def test_large_residuals_of_both_signs_come_back(self):
        codes = np.array([LARGEST, -LARGEST, 0, 1, -1] * 30)
        message = Message({"w": grid(codes, 0)})
        schema = schema_of(message)
        reference = {"w": torch.tensor([-1e30, 1e30, 5.0, 1.0, -1.0] * 30)}
        held = GRID.hold(schema.slots, reference, False)
        assert held.nearest(np.zeros(1, np.int32)).tolist()[:2] == [-LARGEST, LARGEST]
        assert same(decode(encode(message, schema, reference=reference), schema, reference=reference), message)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_grids_on_a_gpu_arrive_on_the_cpu(self):
        value = rounded((20, 30), 6, rows=True)
        message, moved = Message({"w": value}), Message({"w": Grid(*(part.cuda() for part in value))})
        schema = schema_of(message)
        reference = {"w": dense(value).cuda()}
        assert same(decode(encode(moved, schema, reference=reference), schema, reference=reference), message)


class TestSizes:
    @pytest.mark.parametrize("size", [2_000, 6_000, 23_520])
    @pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
    @pytest.mark.parametrize("rows", [False, True])
    def test_a_message_is_at_most_three_percent_above_its_entropy(self, size, bits, rows):
        value = rounded((size // 40, 40), bits, rows=rows)
        message = Message({"w": value})
        least = entropy(value.codes) + entropy(value.exponents)
        assert len(encode(message, schema_of(message))) <= 1.03 * least + 64

    @pytest.mark.parametrize("bits", [6, 8])
    def test_a_broadcast_costs_what_changed(self, bits):
        """The model moves by a few steps; what travels is how many."""
        source = torch.Generator().manual_seed(1)
        before = torch.randn(30, 784, generator=source)
        moved = before + 0.01 * torch.randn(30, 784, generator=source)
        steps = exponents_for((moved - before).abs().amax(1), bits)
        last = on_grid(before, steps + 1)
        message, reference = Message({"w": on_grid(moved, steps)}), {"w": last.dense()}
        differences = message.tensors["w"].codes - on_grid(last.dense(), steps).codes
        schema = schema_of(message)
        given = len(encode(message, schema, reference=reference))
        assert given <= 1.03 * (entropy(differences) + entropy(steps)) + 64
        assert given < 0.75 * len(encode(message, schema))

    def test_the_upload_of_a_small_network_has_less_than_64_bytes_of_headers_and_models(self):
        for bits in (2, 3, 4):
            shapes = {"a.weight": (30, 784), "a.bias": (30,), "b.bias": (20,), "c.weight": (10, 20), "c.bias": (10,)}
            values = {name: rounded(shape, bits, seed) for seed, (name, shape) in enumerate(shapes.items())}
            message = Message(values, {"round": 1.0, "samples": 600.0})
            codes = np.concatenate([value.codes.numpy().reshape(-1) for value in values.values()])
            steps = [int(value.exponents) for value in values.values()]
            least = entropy(codes) + entropy(steps) + 16
            assert len(encode(message, schema_of(message))) <= least + 64

    def test_tensors_that_are_spread_alike_share_a_model(self):
        """Eighty tensors of 64 numbers: a model each would cost more than it saves, one for all wastes bits."""
        rng = np.random.default_rng(0)
        narrow = [np.rint(rng.normal(0, 0.6, 64)) for _ in range(40)]
        wide = [np.rint(rng.normal(0, 9, 64)) for _ in range(40)]
        both = [part for pair in zip(narrow, wide, strict=True) for part in pair]
        found = groups_of([lists.histogram([part.astype(np.int32)]) for part in both])
        assert found == [found[0], found[1]] * 40
        assert found[0] != found[1]
        message = Message({str(i): grid(part) for i, part in enumerate(both)})
        assert len(encode(message, schema_of(message))) <= 1.03 * entropy(narrow, wide) + 64
        assert set(groups_of([lists.histogram([part.astype(np.int32)]) for part in narrow])) == {0}

    def test_hundreds_of_tensors_are_grouped_too(self):
        rng = np.random.default_rng(0)
        message = Message({str(i): grid(np.rint(rng.normal(0, 2.0 ** (i % 7), 50)), -(i % 5)) for i in range(300)})
        schema = schema_of(message)
        assert same(decode(encode(message, schema), schema), message)

    def test_as_many_groups_as_tensors_are_read_in_no_time(self):
        """A file can name so many tensors in less than a megabyte."""
        slots = tuple(Slot(str(i), (2,), Kind.GRID) for i in range(30_000))
        groups = grid_stream.write_groups(list(range(len(slots))), len(slots))
        stream = b"\x76" + groups + bytes(2) + b"\x00\x00" * len(slots)
        began = time.thread_time()
        values = GRID.decode(slots, Coded(stream, codec=2), None)
        assert time.thread_time() - began < 10
        assert len(values) == len(slots)
        assert not any(value.codes.any() for value in values[:100])

    def test_nothing_changed_costs_nothing(self):
        value = rounded((64, 500), 8, rows=True)
        message = Message({"w": value})
        assert len(encode(message, schema_of(message), reference={"w": dense(value)})) <= 64 + 64 / 4

    def test_grids_that_repeat_are_found_by_zstd(self):
        pattern = np.tile(np.random.default_rng(0).integers(-(2**20), 2**20, 500), 50)
        message = Message({"w": grid(pattern)})
        schema = schema_of(message)
        data = encode(message, schema)
        assert locate(data, schema).sections["grid"].codec == 1
        assert len(data) < 0.2 * 3 * len(pattern)
        assert same(decode(data, schema), message)

    @pytest.mark.parametrize("given_reference", [False, True])
    def test_memory_is_bounded_by_the_numbers(self, given_reference):
        size = 500_000
        value = rounded((500, 1000), 8, rows=True)
        message = Message({"w": value})
        schema, reference = schema_of(message), {"w": dense(value) + 1} if given_reference else None
        data = encode(message, schema, reference=reference)
        tracemalloc.start()
        try:
            decode(data, schema, reference=reference)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= (4 + 16) * size + 6_000_000


class TestFiles:
    def test_a_summary_tells_bits_and_entropy_of_grids(self, tmp_path):
        model = {"w": rounded((100, 300), 6, rows=True), "v": rounded((20_000,), 2), "b": torch.zeros(8)}
        size = save_tern(tmp_path / "m.tern", model)
        summary = describe(tmp_path / "m.tern")
        w, v, _ = summary.rows
        assert (w.kind, v.kind) == ("grid_rows", "grid")
        assert w.entropy == pytest.approx(8 * entropy(model["w"].codes) / 30_000, rel=1e-9)
        assert w.bits == pytest.approx(w.entropy, rel=0.03)
        assert v.bits == pytest.approx(v.entropy, rel=0.03)
        assert v.zeros == float((model["v"].codes == 0).double().mean())
        assert summary.codec == "ans"
        total = sum(row.bits * np.prod(row.shape) for row in summary.rows) / 8
        assert 0 < size - total < 200

    def test_a_grid_of_nothing_but_zeros_can_be_saved_and_read(self):
        model = {"w": grid(np.zeros(1_000_000))}
        assert same(Message(parse_tern(tern_bytes(model))[0]), Message(model))


class TestMany:
    """More numbers than are coded at a time: those that fit a byte are bytes on the way."""

    def message(self) -> Message:
        parts = {"a": rounded((300, 400), 2, 1, rows=True), "b": rounded((90, 300), 4, 2), "c": rounded((7,), 6, 3)}
        return Message(parts, {})

    @pytest.mark.parametrize("held", [False, True])
    def test_their_bytes_are_those_of_wider_numbers(self, monkeypatch, held):
        message = self.message()
        reference = {n: dense(value) * 0.9 for n, value in message.tensors.items()} if held else None
        data = encode(message, schema_of(message), reference=reference)
        assert same(decode(data, schema_of(message), reference=reference), message)
        monkeypatch.setattr("ternfed.wire.grid._fits", lambda part: False)
        assert encode(message, schema_of(message), reference=reference) == data
        monkeypatch.setattr(lists.Model, "fits_a_byte", False)
        assert same(decode(data, schema_of(message), reference=reference), message)

    def test_a_single_large_number_makes_all_of_them_wide(self):
        message = self.message()
        message.tensors["a"].codes[17, 3] = -128
        message.tensors["b"].codes[0, 0] = 70_000
        assert same(decode(encode(message, schema_of(message)), schema_of(message)), message)

    def test_coding_them_takes_less_than_another_copy(self):
        message = Message({"a": rounded((1000, 1000), 2, 1, rows=True), "b": rounded((1000, 1000), 3, 2)}, {})
        schema, size = schema_of(message), 4 * 2_000_000
        encode(message, schema)
        tracemalloc.start()
        try:
            data = encode(message, schema)
            assert tracemalloc.get_traced_memory()[1] < size
            tracemalloc.reset_peak()
            decode(data, schema)
            assert tracemalloc.get_traced_memory()[1] < 2 * size
        finally:
            tracemalloc.stop()
