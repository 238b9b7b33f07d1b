"""The benchmark itself: what it says of sizes holds on every machine; what it says of speed is the machine's."""

import numpy as np
import pytest
from wire_samples import trits

from ternfed.bench import rivals
from ternfed.bench import wire as bench


@pytest.fixture(scope="module")
def report():
    return bench.run(1_000_000, repeats=1, epoch=False)


def test_every_promise_about_size_and_memory_is_kept(report):
    about_speed = ("encoding", "decoding")
    sizes = [promise for promise in report.promises if not any(word in promise.what for word in about_speed)]
    assert len(sizes) == 5
    assert [promise.what for promise in sizes if not promise.kept] == []


def test_the_page_has_every_table(report):
    page = bench.table(report)
    for text in ("`ans`", "`base3`", "`2 bits`", "Golomb", "ResNet18*", "bfloat16", "given the last", "promise"):
        assert text in page
    widths = [{line.count(" | ") for line in block.split("\n") if line.startswith("|")} for block in page.split("\n\n")]
    assert all(len(width) <= 1 for width in widths)


def test_a_model_a_context_is_never_larger_than_the_difference_but_by_its_counts(report):
    for row in report.references:
        assert row.contexts <= row.difference + 16 * 8 / bench.RESNET_TRITS


def test_ans_is_never_larger_than_golomb_but_by_its_counts(report):
    """Why there is no Golomb codec. Six counts of up to three bytes, and less than a word at the end."""
    for row in report.references:
        assert row.contexts <= row.golomb + 20 * 8 / bench.RESNET_TRITS


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.99, 1.0])
def test_other_packers_are_lossless_too(zeros):
    for size in (1, 7, 300_001):
        codes = trits(np.random.default_rng(size), size, zeros)
        for _, _, write, read in rivals.codecs():
            assert np.array_equal(read(write(codes), size), codes)


def test_golomb_counts_the_bits_of_a_plain_code():
    codes = np.zeros(1000, np.int8)
    codes[[3, 500, 501, 999]] = [1, -1, 1, 1]
    low_bits = 7  # the best for 4 in 1000
    plain = sum(gap // 2**low_bits + 1 + low_bits + 1 for gap in (3, 496, 0, 497)) + 5
    assert rivals.golomb_bits(codes) == plain
    assert rivals.golomb_bits(np.zeros(9, np.int8)) == 5
