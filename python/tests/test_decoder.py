# SPDX-License-Identifier: MIT
"""nprf.Decoder: attention of sequences that grow token by token."""

import copy
import pickle
import threading

import nprf
import numpy as np
import pytest
from conftest import assert_within_bounds, default_tolerance, heads, interrupted, positions

B, H, N, D, V = 2, 4, 40, 8, 5


def maps():
    return {
        "orf": nprf.orf(D, 16, seed=7),
        "elu": nprf.elu(D),
        "taylor": nprf.taylor(D),
        "one for each head": nprf.HeadFeatures([nprf.orf(D, 16, seed=s) for s in range(H)]),
    }


def tokens(rng, n=N, batch=B, dtype=np.float64):
    return heads(rng, batch, H, n, D, dtype=dtype), *(heads(rng, batch, H, n, c, dtype=dtype) for c in (D, V))


def part(x, first, last):
    return tuple(each[..., first:last, :] for each in x)


@pytest.mark.parametrize(
    "name, near", [(name, near) for name in maps() for near in (0, 3) if (name, near) != ("elu", 3)]
)
def test_steps_have_the_rows_of_attention(rng, name, near):
    x = tokens(rng)
    for position_name, position in positions(rng, H).items():
        expected, whole = nprf.attention(
            *x, features=maps()[name], position=position, causal=True, near=near, report=True
        )
        decoder = nprf.Decoder(maps()[name], position, heads=H, batch=B, near=near, dtype=np.float64)
        prompt, first = decoder.prefill(*part(x, 0, 10), report=True)
        rows, bounds, others = [prompt], [whole.error_bound, first.error_bound], first.repaired_rows
        for begin, end in [(10, 11), (11, 12), (12, 17)] + [(i, i + 1) for i in range(17, N)]:
            y, report = decoder.step(*part(x, begin, end), report=True)
            rows.append(y)
            bounds.append(report.error_bound)
            others += report.repaired_rows + report.failing_rows
        assert decoder.tokens == [N] * B and decoder.nbytes > 0
        error = np.abs(np.concatenate(rows, axis=2) - expected).max(axis=-1)
        # both have rounding errors; rows that cancel are counted, and are those of softmax or less accurate
        different = (error > 2 * max(bounds) * np.abs(x[2]).max()).sum()
        assert different <= others + whole.repaired_rows, position_name
        assert max(bounds) <= default_tolerance[x[2].dtype]


def test_one_sequence_and_layouts(rng):
    x = tokens(rng, batch=1, dtype=np.float32)
    new = lambda: nprf.Decoder(nprf.orf(D, 16), nprf.Alibi(0.1))
    y = new().step(*x)
    assert y.shape == (1, H, N, V) and y.dtype == np.float32
    assert np.array_equal(new().step(*(each[0] for each in x)), y[0])
    assert np.array_equal(new().step(*(each[0, 1] for each in x)), y[0, 1])
    first = [each.transpose(0, 2, 1, 3) for each in x]
    assert np.array_equal(new().step(*first, layout="tokens_first").transpose(0, 2, 1, 3), y)
    grouped = new().step(x[0], x[1][:, :2], x[2][:, :2])
    assert np.array_equal(grouped, new().step(x[0], *(np.repeat(each[:, :2], 2, axis=1) for each in x[1:])))


def test_lengths(rng):
    x = tokens(rng)
    decoder = nprf.Decoder(nprf.orf(D, 16), nprf.Alibi(0.1), batch=B, dtype=np.float64)
    y = decoder.prefill(*part(x, 0, 9), lengths=[9, 4])
    assert decoder.tokens == [9, 4] and not y[1, :, 4:].any()
    y, of_step = decoder.step(*part(x, 9, 11), lengths=[0, 2], report=True)
    assert decoder.tokens == [9, 6] and not y[0].any()
    kept = [np.concatenate([each[1:, :, :4], each[1:, :, 9:11]], axis=2) for each in x]
    expected, of_whole = nprf.attention(
        *kept, features=nprf.orf(D, 16), position=nprf.Alibi(0.1), causal=True, report=True
    )
    assert_within_bounds(y[1], expected[0, :, 4:], x[2], of_step, of_whole)


@pytest.mark.parametrize("layout", ["heads_first", "tokens_first"])
def test_padding_before_the_tokens(rng, layout):
    """Sequences of 9, 3 and 0 tokens of padding, then 11, 17 and 20 others, and one of padding alone."""
    x, counts = tokens(rng, 20, batch=4), [9, 3, 0, 20]
    mask = np.arange(20) >= np.array(counts)[:, None]
    options = {"features": nprf.taylor(D), "position": nprf.Alibi(nprf.alibi_slopes(H)), "near": 4, "sinks": 2}

    def in_layout(each):
        return tuple(np.swapaxes(a, -2, -3) if layout == "tokens_first" else a for a in each)

    decoder = nprf.Decoder(**options, batch=4, dtype=np.float64)
    y = in_layout([decoder.prefill(*in_layout(x), key_mask=mask, layout=layout)])[0]
    y_and_report = nprf.Decoder(**options, batch=4, dtype=np.float64).prefill(*x, key_mask=mask, report=True)
    assert np.array_equal(y_and_report[0], y) and y_and_report[1].compared_rows == 0
    assert decoder.tokens == [20 - count for count in counts]
    next_tokens = tokens(rng, 2, batch=4)
    rows = decoder.step(*next_tokens)
    for b, count in enumerate(counts):
        alone = nprf.Decoder(**options, dtype=np.float64)
        kept = [each[b : b + 1, :, count:] for each in x]
        expected = alone.prefill(*kept)
        assert np.array_equal(y[b, :, count:], expected[0]) and not y[b, :, :count].any()
        assert np.array_equal(rows[b], alone.step(*(each[b] for each in next_tokens)))
        one = nprf.Decoder(**options, dtype=np.float64)  # without an axis of the batch, and of heads
        of_one = one.prefill(*in_layout(each[b] for each in x), key_mask=mask[b], layout=layout)
        assert np.array_equal(in_layout([of_one])[0], y[b])
    single = nprf.Decoder(nprf.taylor(D), dtype=np.float64)
    assert single.prefill(*(each[0, 0] for each in x), key_mask=mask[:1]).shape == (20, V)
    assert nprf.Decoder(nprf.taylor(D), batch=4).prefill(
        *(each[..., :0, :].astype(np.float32) for each in x), key_mask=mask[:, :0]
    ).shape == (4, H, 0, V)


def test_masks_that_a_decoder_refuses(rng):
    x = tokens(rng, 6)
    decoder = nprf.Decoder(nprf.taylor(D), batch=B, dtype=np.float64)
    after, between = np.ones((2, B, 6), bool)
    after[1, 4:], between[1, [0, 2]] = False, False
    for error, text, mask in (
        (
            ValueError,
            "key_mask: expected padding .* before the tokens .* after token 3 of sequence 1; .* lengths",
            after,
        ),
        (ValueError, "key_mask: expected padding .* after token 1 of sequence 1", between),
        (ValueError, r"key_mask: expected 2 x 6 \(sequences, keys\), got the shape \[6, 2\]", after.T),
        (ValueError, r"key_mask: expected 2 x 6 .*, got the shape \[6\]", after[0]),
        (TypeError, "key_mask: expected bool, got int64", after.astype(np.int64)),
    ):
        with pytest.raises(error, match=text):
            decoder.prefill(*x, key_mask=mask)
    with pytest.raises(ValueError, match="lengths: expected none beside a key_mask"):
        decoder.prefill(*x, key_mask=np.ones((B, 6), bool), lengths=[6, 6])
    with pytest.raises(ValueError, match="key_mask: expected None for steps"):
        decoder.step(*x, key_mask=np.ones((B, 6), bool))
    for wrong in ((x[0][:1], *x[1:]), (x[0], x[1][:, :, :5], x[2]), (*x[:2], x[2][0]), [each[0] for each in x]):
        with pytest.raises(ValueError, match="(queries|keys|values).*: expected"):
            decoder.prefill(*wrong, key_mask=np.ones((B, 6), bool))
    assert decoder.tokens == [0, 0]


def test_rollback_reorder_fork_and_reset(rng):
    x = tokens(rng, batch=3)
    position = nprf.T5(rng.standard_normal(8), max_distance=12)
    decoder = nprf.Decoder(nprf.orf(D, 16), position, batch=3, rollback=4, dtype=np.float64)
    decoder.prefill(*part(x, 0, 20))
    y, report = decoder.step(*part(x, 20, 24), report=True)
    for sequence in range(3):
        decoder.rollback(sequence, 4)
    again, of_again = decoder.step(*part(x, 20, 24), report=True)
    assert_within_bounds(again, y, x[2], report, of_again)
    decoder.rollback(0, 2)
    with pytest.raises(ValueError, match="at most 4"):
        decoder.rollback(0, 3)
    assert decoder.tokens == [22, 24, 24]

    decoder.reorder([2, 0, 0])
    assert decoder.tokens == [24, 22, 22]
    decoder.fork(0, 1)
    assert decoder.tokens == [24, 24, 22]
    same = [np.repeat(each[:1, :, 30:31], 3, axis=0) for each in x]
    y = decoder.step(*same)
    assert np.array_equal(y[0], y[1]) and not np.array_equal(y[0], y[2])
    decoder.reset(1)
    assert decoder.tokens == [25, 0, 23]
    decoder.reorder([0, 0, 2, 0])
    assert decoder.tokens == [25, 25, 23, 25] and decoder.batch == 4
    decoder.reset()
    assert decoder.tokens == [0, 0, 0, 0]


def test_smooth_tables_have_a_state_of_fixed_size(rng):
    x = [each[:1] for each in tokens(rng, dtype=np.float32)]
    x = [np.concatenate([each] * 20, axis=2) for each in x]
    n = x[0].shape[2]
    position = nprf.Kerple([0.5, 0.1], n)
    decoder = nprf.Decoder(nprf.orf(D, 16), position, most_tokens=n)
    decoder.prefill(*part(x, 0, n - 100))
    size = decoder.nbytes
    y, report = decoder.step(*part(x, n - 100, n), report=True)
    assert decoder.nbytes == size
    exact, of_exact = nprf.attention(
        *x, features=nprf.orf(D, 16), position=position, causal=True, engine="direct", report=True
    )
    assert_within_bounds(y, exact[:, :, -100:], x[2], report, of_exact)
    for each in (decoder, pickle.loads(pickle.dumps(decoder))):
        with pytest.raises(ValueError, match="most_tokens"):
            each.step(*part(x, 0, 1))


def test_saved_states(rng):
    x = tokens(rng, dtype=np.float32)
    arguments = {"batch": B, "rollback": 3, "near": 2, "normalization": nprf.Normalization.none()}
    decoder = nprf.Decoder(nprf.taylor(D), nprf.Alibi(0.1), **arguments)
    empty = decoder.save()
    decoder.prefill(*part(x, 0, 30))
    state = decoder.save()
    others = [pickle.loads(pickle.dumps(decoder)), copy.deepcopy(decoder), copy.copy(decoder)]
    others.append(nprf.Decoder(nprf.taylor(D), nprf.Alibi(0.1), **arguments))
    others[-1].load(state)
    y = decoder.step(*part(x, 30, 35))
    for other in others:
        assert other is not decoder and repr(other) == repr(decoder)
        assert other.tokens == [30, 30]
        assert np.array_equal(other.step(*part(x, 30, 35)), y)

    changed = bytearray(state)
    changed[100] ^= 1
    for wrong in (state[:-1], bytes(changed), b""):
        with pytest.raises(ValueError, match="state"):
            decoder.load(wrong)
    with pytest.raises(ValueError, match="state"):
        nprf.Decoder(nprf.taylor(D), nprf.Alibi(0.2), **arguments).load(state)
    with pytest.raises(TypeError, match="bytes"):
        decoder.load("text")
    assert decoder.tokens == [35, 35]
    decoder.load(empty)
    assert decoder.tokens == [0, 0]


def test_the_state_does_not_grow(rng):
    x = tokens(rng, n=600, batch=1, dtype=np.float32)
    decoder = nprf.Decoder(nprf.orf(D, 16), nprf.T5(rng.standard_normal(32)))
    decoder.prefill(*part(x, 0, 300))
    size = decoder.nbytes
    decoder.step(*part(x, 300, 600))
    assert decoder.nbytes == size < 600 * H * (D + V) * 4


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: nprf.Decoder(nprf.orf(3, 3), batch=0), ValueError, "batch"),
        (lambda: nprf.Decoder(nprf.orf(3, 3), rollback=-1), ValueError, "rollback"),
        (lambda: nprf.Decoder(nprf.orf(3, 3), near=-1), ValueError, "near"),
        (lambda: nprf.Decoder(nprf.orf(3, 3), most_tokens=-1), ValueError, "most_tokens"),
        (lambda: nprf.Decoder(nprf.orf(3, 3), nprf.Grid(2, 2, np.zeros((3, 3)))), ValueError, "grid"),
        (lambda: nprf.Decoder(nprf.orf(3, 3), dtype=np.int32), TypeError, "float32 or float64"),
        (lambda: nprf.Decoder(3), TypeError, "features"),
        (lambda: nprf.Decoder(nprf.orf(3, 3)).step(*(np.ones((2, 3)),) * 3), TypeError, "float32"),
        (
            lambda: nprf.Decoder(nprf.orf(3, 3), heads=2).step(*(np.ones((1, 2, 3), "f"),) * 3),
            ValueError,
            "2 heads, got 1",
        ),
        (
            lambda: nprf.Decoder(nprf.orf(3, 3), heads=2).step(*(np.ones((2, 3), "f"),) * 3),
            ValueError,
            "2 heads, got 1",
        ),
        (lambda: nprf.Decoder(nprf.orf(3, 3)).step(*(np.ones((2, 4), "f"),) * 3), ValueError, "queries"),
        (lambda: nprf.Decoder(nprf.orf(3, 3)).step(*(np.ones((2, 3), "f"),) * 3, offset=1), ValueError, "offset"),
        (lambda: nprf.Decoder(nprf.orf(3, 3), batch=2).step(*(np.ones((2, 3), "f"),) * 3), ValueError, "2 x 1 x 2 x 3"),
        (
            lambda: nprf.Decoder(nprf.orf(3, 3)).prefill(*(np.ones((2, 3), "f"),) * 3, softmax_samples=2),
            ValueError,
            "softmax_samples: expected 0 without report=True, got 2",
        ),
        (
            lambda: nprf.Decoder(nprf.orf(3, 3)).step(*(np.ones((2, 3), "f"),) * 3, lengths=[]),
            ValueError,
            "lengths: expected 1 entries",
        ),
        (
            lambda: nprf.Decoder(nprf.orf(3, 3)).step(np.ones((2, 3), "f"), np.ones((2, 3)), np.ones((2, 3), "f")),
            TypeError,
            "keys: expected float32, as the queries, got float64",
        ),
        (lambda: nprf.Decoder(nprf.orf(3, 3)).rollback(1, 0), ValueError, "sequence"),
        (lambda: nprf.Decoder(nprf.orf(3, 3)).reorder([1]), ValueError, "from"),
        (lambda: nprf.Decoder(nprf.orf(3, 3)).reorder([]), ValueError, "from: expected at least 1 sequence, got 0"),
        (lambda: nprf.Decoder(nprf.orf(3, 3)).reset(1), ValueError, "sequence"),
    ],
)
def test_invalid_arguments(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_one_call_at_a_time(rng):
    """A call during another one, which releases the GIL, does not touch the same state."""
    x = tokens(rng, batch=1, dtype=np.float32)
    decoder = nprf.Decoder(nprf.orf(D, 16), nprf.Alibi(0.1))
    calls = [
        lambda: decoder.prefill(*x),
        lambda: decoder.step(*x),
        lambda: decoder.rollback(0, 0),
        lambda: decoder.reorder([0]),
        lambda: decoder.fork(0, 0),
        lambda: decoder.reset(),
        lambda: decoder.tokens,
        lambda: decoder.nbytes,
        lambda: decoder.save(),
        lambda: decoder.load(b""),
    ]
    decoder.step(*x)
    with decoder._one_call:
        for call in calls:
            with pytest.raises(RuntimeError, match="one call at a time"):
                call()
    with pytest.raises(ValueError, match="queries"):
        decoder.step(*(np.ones((2, 3), "f"),) * 3)
    assert decoder.tokens == [N]
    decoder.step(*x)  # a call that failed is over
    assert decoder.tokens == [2 * N]


def assert_continues_as(decoder, other, x):
    """Both have the same tokens, and so the next rows."""
    assert decoder.tokens == other.tokens
    y, report = decoder.step(*x, report=True)
    expected, of_other = other.step(*x, report=True)
    assert_within_bounds(y, expected, x[2], report, of_other)


def test_ctrl_c_ends_a_prefill(rng):
    x = heads(rng, 1, 2**18, D, dtype=np.float32)
    new = lambda: nprf.Decoder(nprf.orf(D, 64), nprf.Alibi(0.1), engine="direct")
    decoder = new()
    with interrupted():
        decoder.prefill(x, x, x)
    assert_continues_as(decoder, new(), (x[:, :20],) * 3)


@pytest.mark.parametrize("call", ["prefill", "step"])
@pytest.mark.parametrize("near", [0, 2**15])
def test_ctrl_c_ends_steps(rng, call, near):
    """The sequence takes the tokens back that it still has, here `near` of them, and is empty otherwise."""
    h, r = (8, 16) if near else (64, 1024)
    x = np.broadcast_to(heads(rng, 1, 2**15, D, dtype=np.float32), (h, 2**15, D))
    first, few = x[:, :5], x[:, 5:9]
    new = lambda: nprf.Decoder(nprf.orf(D, r), nprf.Alibi(0.1), near=near)
    decoder, other = new(), new()
    decoder.step(first, first, first)
    with interrupted():
        getattr(decoder, call)(x, x, x)
    if near:
        other.step(first, first, first)
    assert_continues_as(decoder, other, (few, few, few))


def test_threads_of_their_own_decoders(rng):
    x = tokens(rng, n=300, batch=1, dtype=np.float32)
    decoders = [nprf.Decoder(nprf.orf(D, 16), nprf.Alibi(0.1)) for _ in range(4)]
    rows = [None] * len(decoders)

    def generate(i):
        rows[i] = np.concatenate([decoders[i].step(*part(x, t, t + 1)) for t in range(300)], axis=2)

    threads = [threading.Thread(target=generate, args=(i,)) for i in range(len(decoders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(each, rows[0]) for each in rows) and rows[0].shape == (1, H, 300, V)
