"""Forms: what a slot can hold is known in one place, and everybody else asks there."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from wire_samples import drift, grid, messages, small, ternary, trits

import ternfed
from ternfed.wire import (
    FORMS,
    Kind,
    Message,
    MessageError,
    Reference,
    decode,
    dense,
    encode,
    form_for,
    form_of,
    largest,
    same,
    schema_of,
    trits_of,
)
from ternfed.wire.form import Options
from ternfed.wire.forms import put_together, take_apart
from ternfed.wire.message import locate
from ternfed.wire.planes import DENSE
from ternfed.wire.ternary import TERNARY

VALUES = {
    "ternary": ternary(np.array([-1, 0, 1, 1], np.int8), 0.5, 0.25, (2, 2)),
    "grid": grid(np.array([[-100, 2], [0, 70000]]), np.array([-3, -15])),
    "dense": torch.tensor([[0.5, -2.0], [0.0, 1.0]]),
}


def test_there_is_a_sample_of_every_form():
    assert VALUES.keys() == {form.name for form in FORMS}
    assert all(form_of(VALUES[form.name]) is form for form in FORMS)


def test_every_kind_of_a_schema_has_exactly_one_form():
    kinds = [kind for form in FORMS for kind in form.kinds]
    assert sorted(kinds) == sorted(Kind)
    assert all(kind in form_for(kind).kinds for kind in Kind)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
class TestEveryForm:
    def test_is_taken_apart_and_joined_again(self, form):
        value = VALUES[form.name]
        parts = form.parts(value)
        assert tuple(parts) == form.fields
        assert same(Message({"w": form.join(parts)}), Message({"w": value}))

    def test_fits_the_slot_it_describes_and_no_other(self, form):
        value = VALUES[form.name]
        slot = form.slot("w", value)
        assert form_for(slot.kind) is form
        assert slot.shape == (2, 2)
        form.check(slot, value)
        with pytest.raises(MessageError, match=r"^w: "):
            form.check(type(slot)("w", (4,), slot.kind), value)

    def test_has_a_dense_value_of_the_slots_shape(self, form):
        value = VALUES[form.name]
        assert tuple(dense(value).shape) == (2, 2)
        assert float(dense(value).abs().max()) == largest(value)

    def test_is_coded_together_and_comes_back_with_or_without_what_the_receiver_holds(self, form):
        values = [VALUES[form.name]] * 3
        slots = tuple(form.slot(str(place), value) for place, value in enumerate(values))
        lent = {slot.name: form.lends(value) for slot, value in zip(slots, values, strict=True)}
        for held in (None, form.hold(slots, lent, False)):
            coded = form.encode(slots, values, held, Options())
            assert len(coded.front) == form.front(slots, coded.flags)
            back = form.decode(slots, coded, held)
            assert same(Message(dict(enumerate(back))), Message(dict(enumerate(values))))

    def test_no_slots_are_no_trouble(self, form):
        assert form.decode((), form.encode((), [], None, Options()), None) == []


@given(messages())
@settings(max_examples=100, deadline=None)
def test_any_slots_are_saved_as_named_tensors_and_put_together_again(message):
    values = put_together(take_apart(message.tensors))
    assert same(Message(values, message.numbers), message)


def test_what_else_is_saved_beside_them_is_left_alone():
    saved = take_apart(VALUES)
    assert set(saved) == {
        "ternary/codes/ternary",
        "ternary/positive/ternary",
        "ternary/negative/ternary",
        "grid/codes/grid",
        "grid/exponents/grid",
        "dense/dense",
    }
    assert put_together({**saved, "memory/best": torch.ones(1)}).keys() == VALUES.keys()


def test_the_largest_size_tells_of_values_that_are_not_finite():
    assert largest(torch.tensor([1, -3])) == 0.0
    assert largest(torch.empty(0)) == 0.0
    assert largest(torch.tensor([1.0, -3.0])) == 3.0
    assert largest(torch.tensor([1.0, -math.inf])) == math.inf
    assert math.isnan(largest(torch.tensor([1.0, math.nan])))
    assert largest(VALUES["ternary"]) == 0.5
    assert largest(VALUES["grid"]) == 12.5
    assert largest(grid(np.zeros((0, 3)))) == 0.0


def test_only_trits_are_trits():
    assert trits_of(VALUES["ternary"]).tolist() == [[-1, 0], [1, 1]]
    assert trits_of(VALUES["grid"]) is None
    assert trits_of(VALUES["dense"]) is None
    assert trits_of(torch.zeros(3, dtype=torch.int8)) is None


def test_a_value_of_no_form_is_refused():
    with pytest.raises(MessageError, match="cannot hold a ndarray"):
        form_of(np.ones(3))


class TestReferences:
    def test_a_form_takes_what_it_can_use_of_any_named_tensors(self):
        message, codes = small()
        schema = schema_of(message)
        more = Reference({**codes, "bn.weight": torch.ones(40), "elsewhere": torch.zeros(7)})
        data = encode(message, schema, reference=more, codec="ans")
        assert data == encode(message, schema, reference=codes, codec="ans")
        assert locate(data, schema).sections["ternary"].given is not None
        assert same(decode(data, schema, reference=more), message)
        assert more.held(DENSE, schema.of(DENSE.kinds)) is None

    def test_one_serves_messages_of_several_schemas(self):
        """As a broadcast's does: the next broadcast may have other numbers, or no trits at all."""
        rng = np.random.default_rng(0)
        held = trits(rng, 1_000, 0.4)
        reference = Reference({"w": torch.from_numpy(held)})
        near = ternary(drift(rng, held, 0.1))
        for message in (Message({"w": near}), Message({"w": near, "b": torch.ones(2)}), Message({"w": near.dense()})):
            schema = schema_of(message)
            data = encode(message, schema, reference=reference)
            trits_coded = locate(data, schema).sections.get("ternary")
            assert (trits_coded is not None and trits_coded.given is not None) is bool(schema.ternary)
            assert same(decode(data, schema, reference=reference), message)

    def test_what_was_found_for_one_message_serves_the_next(self):
        message, codes = small()
        slots = schema_of(message).ternary
        reference = Reference(codes)
        assert reference.held(TERNARY, slots) is reference.held(TERNARY, slots)


def test_nobody_else_asks_what_class_a_value_has():
    """Outside wire/ and quantize/, a value is known by its form."""
    package = Path(ternfed.__file__).parent
    asking = []
    for file in sorted(package.rglob("*.py")):
        if file.relative_to(package).parts[0] in ("wire", "quantize"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                    names = {part.id for part in ast.walk(kinds) if isinstance(part, ast.Name)}
                    names |= {part.attr for part in ast.walk(kinds) if isinstance(part, ast.Attribute)}
                    if names & {"Ternary", "Grid"}:
                        asking.append(f"{file.relative_to(package)}:{node.lineno}")
    assert asking == []
