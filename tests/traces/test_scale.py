"""Cutting, stretching, multiplying and thinning."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.traces.files import PLAIN, Requests, json_lines, requests, written
from traces import open_trace
from traces.scale import JITTER_S, at_rate
from traces.trace import Chunk, split

SECONDS = 5_000


def steady(folder: Path) -> Path:
    """A request a second; its prompt has as many tokens as its second, from 1."""
    return written(folder, PLAIN + "".join(f"{i},{i + 1},2\n" for i in range(SECONDS)))


def read(path: Path, **options: Any) -> Requests:
    return requests(open_trace(path, **options))


def test_a_window_begins_at_zero(tmp_path: Path) -> None:
    seen = read(steady(tmp_path), start_s=100.5, duration_s=3)

    assert (seen.arrivals, seen.inputs) == ([0.5, 1.5, 2.5], [102, 103, 104])


def test_twice_the_time_is_half_the_arrivals_a_second(tmp_path: Path) -> None:
    seen = read(steady(tmp_path), time=2.0, start_s=10, duration_s=3)

    assert (seen.arrivals, seen.inputs) == ([0.0, 2.0, 4.0], [11, 12, 13])


def test_twice_the_rate_has_every_request_twice_and_its_copy_nearby(tmp_path: Path) -> None:
    seen = read(steady(tmp_path), rate=2.0)

    assert sorted(seen.inputs) == sorted([*range(1, SECONDS + 1)] * 2)
    away = np.abs(np.array(seen.arrivals) - (np.array(seen.inputs) - 1))
    assert np.count_nonzero(away == 0.0) >= SECONDS
    assert 0.9 * JITTER_S < away.max() <= JITTER_S


def test_half_the_rate_leaves_out_about_half_and_moves_none(tmp_path: Path) -> None:
    seen = read(steady(tmp_path), rate=0.5)

    assert abs(len(seen.inputs) - SECONDS / 2) < 150  # four standard deviations
    assert seen.arrivals == [tokens - 1 for tokens in seen.inputs]


def test_copies_stay_within_the_window(tmp_path: Path) -> None:
    seen = read(steady(tmp_path), rate=20.0, start_s=7, duration_s=3, time=0.5)

    assert len(seen.inputs) == 60
    assert 0.0 <= seen.arrivals[0] <= seen.arrivals[-1] < 1.5
    assert len(set(seen.arrivals)) > 55  # folded back at the edges, not piled up there


def test_equal_seeds_give_equal_traces_and_others_do_not(tmp_path: Path) -> None:
    path = steady(tmp_path)
    trace = open_trace(path, rate=1.5, seed=7)

    assert requests(trace) == requests(trace) == read(path, rate=1.5, seed=7)
    assert requests(trace) != read(path, rate=1.5, seed=8)


def test_copies_do_not_depend_on_chunks() -> None:
    whole = Chunk(np.arange(1000.0), np.arange(1, 1001), np.ones(1000, dtype=np.int64))

    def drawn(most: int) -> list[tuple[float, int]]:
        chunks = list(at_rate(split([whole], most), 2.5, None, 3, "x"))
        return [
            pair for c in chunks for pair in zip(c.arrival_s.tolist(), c.input_tokens.tolist(), strict=True)
        ]

    assert drawn(1000) == drawn(7)


def test_long_prompts_are_cut(tmp_path: Path) -> None:
    assert read(steady(tmp_path), start_s=2, duration_s=3, max_input_tokens=4).inputs == [3, 4, 4]


def test_a_cut_prompt_keeps_the_blocks_it_still_has(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1500, "output_length": 1, "hash_ids": [1, 2, 3]},
        {"timestamp": 1, "input_length": 300, "output_length": 1, "hash_ids": [4]},
    ]

    seen = read(written(tmp_path, json_lines(rows)), max_input_tokens=513)

    assert (seen.inputs, seen.blocks) == ([513, 300], [[1, 2], [4]])


def test_copies_share_prefixes_of_their_own_as_the_originals_do(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 10_000 * i, "input_length": 1024, "output_length": 1, "hash_ids": [1, i + 2]}
        for i in range(3)
    ]

    seen = read(written(tmp_path, json_lines(rows)), rate=2.0)

    originals = [ids for ids in seen.blocks if ids[0] == 1]
    copies = [ids for ids in seen.blocks if ids[0] != 1]
    assert originals == [[1, 2], [1, 3], [1, 4]]
    assert len(copies) == 3
    assert len({ids[0] for ids in copies}) == 1
    assert len({ids[1] for ids in copies}) == 3
    assert not {block for ids in originals for block in ids} & {block for ids in copies for block in ids}
    assert min(block for ids in copies for block in ids) >= 0
