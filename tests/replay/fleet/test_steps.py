"""Steps of one engine, by hand: 10 ms a step + 1 ms a sequence + 10 us a KV token + 100 us a prompt token."""

import pytest

from replay.fleet.layout import E2E, ITL, RATIO, SHORTEST_S, TTFT
from tests.replay.fleet.build import fleet, of, profile, serve, total


def test_the_first_token_of_a_request_alone_takes_a_step_with_its_prompt() -> None:
    alone = fleet()
    serve(alone, (5.0, 300, 1), until=6.0)

    # 0.010 + 300 * 0.0001
    assert total(alone, "ttft_sum") == pytest.approx(0.040)
    assert of(alone, "last_end") == pytest.approx(5.040)
    assert (total(alone, "finished"), total(alone, "open"), of(alone, "kv_used")) == (1, 0, 0)


def test_a_token_takes_a_step_that_grows_with_the_context() -> None:
    alone = fleet()
    serve(alone, (0.0, 300, 3), until=1.0)

    # The 2nd token's step has the prompt in the cache, the 3rd token's one token more:
    # 0.010 + 0.001 + 300 * 0.00001 = 0.014, then 0.01401.
    assert total(alone, "itl_sum") == pytest.approx(0.014 + 0.01401)
    assert total(alone, "itl_count") == 2
    assert of(alone, "last_end") == pytest.approx(0.040 + 0.014 + 0.01401)
    assert (of(alone, "steps"), of(alone, "sum_batch"), of(alone, "sum_kv")) == (3, 2, 300 + 301)


def test_prompts_that_arrive_during_a_step_share_the_next() -> None:
    both = fleet()
    serve(both, (0.0, 500, 1), (0.010, 200, 1), (0.020, 300, 1), until=1.0)

    # The first step ends at 0.010 + 0.050 = 0.060; the second takes 0.010 + 500 * 0.0001 = 0.060.
    assert total(both, "ttft_sum") == pytest.approx(0.060 + (0.120 - 0.010) + (0.120 - 0.020))
    assert of(both, "steps") == 2


def test_a_long_prompt_is_prefilled_in_chunks_of_what_a_step_takes() -> None:
    alone = fleet()
    serve(alone, (0.0, 2500, 1), until=1.0)

    # 1,000 + 1,000 + 500 tokens: 0.110 + 0.110 + 0.060.
    assert total(alone, "ttft_sum") == pytest.approx(0.280)
    assert (of(alone, "steps"), of(alone, "sum_prefill")) == (3, 2500)


def test_who_decodes_goes_before_the_next_chunk_and_takes_of_its_budget() -> None:
    both = fleet()
    serve(both, (0.0, 100, 10), (0.005, 1500, 1), until=1.0)

    # At 0.020 the first has a token. From then on one decodes, and the chunk is 999 tokens:
    # 0.010 + 0.001 + 100 * 0.00001 + 0.0999 = 0.1119. Then one decodes (101 tokens), and 501 prompt tokens:
    # 0.010 + 0.001 + 0.00101 + 0.0501 = 0.06211.
    assert total(both, "ttft_sum") == pytest.approx(0.020 + (0.020 + 0.1119 + 0.06211 - 0.005))


def test_a_prompt_that_gets_nothing_of_a_full_step_waits_in_the_batch() -> None:
    three = fleet()
    serve(three, (0.0, 100, 1), (0.001, 1900, 1), (0.002, 1000, 1), until=0.100)
    # In the second step there is room for 1,000 tokens of the second prompt and for none of the third.
    assert (of(three, "batch_size"), of(three, "waiting")) == (1, 1)

    serve(three, until=0.200)
    # In the third, 900 of the second and 100 of the third.
    assert (of(three, "batch_size"), of(three, "waiting"), of(three, "step_prefill")) == (2, 0, 1000)


def test_no_more_sequences_decode_at_a_time_than_the_batch_takes() -> None:
    five = fleet(of=profile(max_num_seqs=4))
    serve(five, *[(0.0, 100, 50)] * 5, until=0.5)

    assert (of(five, "batch_size"), of(five, "waiting"), of(five, "in_flight")) == (4, 1, 5)
    assert total(five, "first_tokens") == 4


def test_a_batch_of_the_same_requests_ends_together() -> None:
    four = fleet()
    serve(four, (0.0, 1, 1), *[(0.005, 100, 3)] * 4, until=1.0)

    # The first step, 0.0101, is over before the four; theirs: 0.010 + 0.040 = 0.050 for the first token, then
    # 0.010 + 4 * 0.001 + 400 * 0.00001 = 0.018 and 0.01804.
    assert of(four, "last_end") == pytest.approx(0.0101 + 0.050 + 0.018 + 0.01804)
    assert total(four, "itl_sum") == pytest.approx(4 * (0.018 + 0.01804))


def test_latencies_are_kept_to_a_hundredth() -> None:
    alone = fleet()
    serve(alone, (0.0, 300, 3), until=1.0)
    histograms = alone.memory.histograms

    def only(which: int) -> float:
        places = histograms[which].nonzero()[0]
        return float(SHORTEST_S * RATIO ** (places.mean() + 0.5))

    assert only(TTFT) == pytest.approx(0.040, rel=0.01)
    assert only(ITL) == pytest.approx(0.014, rel=0.01)
    assert only(E2E) == pytest.approx(0.06801, rel=0.01)


def test_where_the_cache_is_full_the_newest_is_preempted_and_computed_again() -> None:
    tight = fleet(of=profile(kv_cache_tokens=1024, max_num_batched_tokens=1020))
    # 600 and 420 tokens are prefilled in one step, behind another. With a second and a third token each, the
    # cache is full: 1020 + 2 + 2 = 1024.
    serve(tight, (0.0, 1, 1), (0.005, 600, 4), (0.006, 420, 4), until=1.0)
    begun = 0.0101
    first = 0.010 + 1020 * 0.0001
    second = 0.010 + 0.002 + 1020 * 0.00001
    third = 0.010 + 0.002 + 1022 * 0.00001
    # In the fourth step there is no place for two more: the first decodes alone, on 602 tokens, and has its
    # fourth token. The other has three.
    fourth = 0.010 + 0.001 + 602 * 0.00001
    # Then it is alone: its prompt and its three tokens are computed in one step, whose token is its last.
    again = 0.010 + 423 * 0.0001

    assert total(tight, "preemptions") == of(tight, "preemptions") == 1
    assert total(tight, "finished") == 3
    assert of(tight, "last_end") == pytest.approx(begun + first + second + third + fourth + again)
    # Its last token came that much after the one before.
    assert total(tight, "itl_sum") == pytest.approx(2 * second + 2 * third + fourth + (fourth + again))
    assert of(tight, "prefilled") == 1 + 1020 + 423
    assert of(tight, "kv_used") == of(tight, "context") == of(tight, "recompute_tokens") == 0


def test_nobody_is_admitted_in_a_step_that_preempts_or_before_the_whole_prompt_fits() -> None:
    tight = fleet(of=profile(kv_cache_tokens=1100, max_num_batched_tokens=300))
    serve(tight, (0.0, 600, 40), (0.001, 520, 2), until=0.3)

    # 600 + 520 tokens do not fit, though a chunk of 300 would.
    assert (of(tight, "batch_size"), of(tight, "waiting")) == (1, 1)
    serve(tight, until=10.0)
    assert total(tight, "preemptions") == 0
    assert total(tight, "finished") == 2


def test_a_request_that_can_never_fit_is_refused_and_a_miss_of_its_minute() -> None:
    small = fleet(of=profile(kv_cache_tokens=1024))
    serve(small, (70.0, 1000, 24), (71.0, 1000, 25), until=80.0)

    assert (total(small, "too_long"), total(small, "rejected"), total(small, "finished")) == (1, 1, 1)
    minute = small.memory.windows[1]
    assert (minute["requests"], minute["rejected"], minute["ttft_ok"]) == (2, 1, 1)


def test_what_an_empty_replica_cannot_answer_in_time_is_infeasible() -> None:
    made = fleet()
    # 0.010 + 0.190 = 0.2, the target; two chunks of a longer prompt have two steps' base.
    serve(made, (0.0, 1000, 1), (1.0, 1800, 1), (2.0, 1801, 1), until=3.0)

    assert total(made, "infeasible") == 1
