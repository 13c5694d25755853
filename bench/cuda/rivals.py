# SPDX-License-Identifier: MIT
"""nprf's rivals: implementations of attention with a bias for every lag in PyTorch, on a GPU.

Queries and keys are normalised before the measurement, and a rival prepares all it can, such as its n x n bias. As a
program it answers each line of its standard input, in JSON, with a line of JSON:

    {"check": true}                                        {"remark": .., "names": the rivals that are right}
    {"measure": [name, n, batch, heads, direction, passes, m or null]}    the result of measure()
    {"check_decoding": true}                               the same of the rivals of decoding
    {"decode": [name, n, batch, heads]}                    the result of measure_decoding()

After an error of the device the program ends, and the caller must start a new one."""

import gc
import json
import math
import statistics
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(print(json.dumps({"remark": f"PyTorch is left out: {error}"})))

D = 64


class Problem:
    """q, k, v [batch, heads, n, d], and b[lag + n - 1] for the lags -(n - 1) .. n - 1; both: with gradients."""

    def __init__(self, n, batch=1, heads=1, causal=False, both=False, device="cuda", seed=2021):
        generator = torch.Generator(device).manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=generator, device=device)
        self.n, self.causal, self.both, self.device = n, causal, both, device
        self.q, self.k = (F.normalize(draw(batch, heads, n, D), dim=-1) for _ in range(2))
        self.v, self.dy = draw(batch, heads, n, D), draw(batch, heads, n, D)
        self.b = draw(2 * n - 1).clamp(-3, 3)
        if causal:
            self.b[n:] = -math.inf
        self.draw = draw

    def inputs(self, dtype):
        return [x.to(dtype).requires_grad_(self.both) for x in (self.q, self.k, self.v)]

    def finished(self, attention, q, k, v):
        """A function that runs attention, and computes the gradients if requested."""
        if not self.both:
            return lambda: attention(q, k, v)
        dy = self.dy.to(v.dtype)
        return lambda: torch.autograd.grad(attention(q, k, v), (q, k, v), dy)


def toeplitz(b, n):
    """bias[i, j] = b[j - i + n - 1]."""
    return b.unfold(0, n, 1).flip(0)


def exact(p):
    """Exact attention by matmul, bias, softmax, matmul, in float without TF32."""
    bias = toeplitz(p.b, p.n)

    def attention(q, k, v):
        scores = q @ k.transpose(-1, -2)
        scores += bias
        return torch.softmax(scores, dim=-1) @ v

    return p.finished(attention, *p.inputs(torch.float32))


def sdpa(p):
    """scaled_dot_product_attention with the bias as its mask, in bfloat16."""
    mask = toeplitz(p.b.bfloat16(), p.n)
    return p.finished(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0), *p.inputs(torch.bfloat16)
    )


def flex(p):
    """Compiled FlexAttention that reads the bias from a table, in bfloat16."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    b, n = p.b, p.n
    blocks = None
    if p.causal:
        blocks = create_block_mask(lambda batch, head, i, j: i >= j, None, None, n, n, device=p.device)
    if p.device == "cuda":
        torch._dynamo.reset()  # otherwise previous shapes count towards its limit
        flex_attention = torch.compile(flex_attention, dynamic=False)

    def score(s, batch, head, i, j):
        return s + b[j - i + n - 1]

    return p.finished(
        lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=blocks, scale=1.0),
        *p.inputs(torch.bfloat16),
    )


def positive_features(x, w):
    """(.., n, d) -> (.., m, n), for rows of norm 1, up to a constant factor."""
    return torch.exp(w @ x.transpose(-1, -2) - 4)


def paper(p, m=32):
    """The formula of Luo et al. 2021 by torch.fft, features included, in float:
    y_i = phi(q_i) D1_i / phi(q_i) D2_i, D = Toeplitz(c) (phi(k) o [v 1])."""
    n, w = p.n, p.draw(m, D)
    # y[i] = sum_j c[j-i] x[j]: the lag l is at index -l modulo 2n
    kernel = torch.zeros(2 * n, device=p.device)
    kernel[(-torch.arange(-(n - 1), n, device=p.device)) % (2 * n)] = torch.exp(p.b - p.b.max())
    spectrum = torch.fft.rfft(kernel)
    p.w = w

    def attention(q, k, v):
        u = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1).transpose(-1, -2)  # (d+1, n)
        x = positive_features(k, w)[..., :, None, :] * u[..., None, :, :]  # (m, d+1, n)
        t = torch.fft.irfft(torch.fft.rfft(x, 2 * n) * spectrum, 2 * n)[..., :n]
        y = (positive_features(q, w)[..., :, None, :] * t).sum(-3).transpose(-1, -2)  # (n, d+1)
        return y[..., :D] / y[..., D:]

    return p.finished(attention, *p.inputs(torch.float32))


RIVALS = {"exact, fp32": exact, "SDPA, bf16": sdpa, "FlexAttention, bf16": flex, "paper, fp32": paper}


# The next token: one query of each head and n keys and values in bfloat16, whose storing is not measured.


def decode_matmul(p):
    """matmul, bias, softmax in float, matmul."""
    q, k, v, bias = last_query(p)
    return lambda: torch.softmax((q @ k.transpose(-1, -2)).float() + bias, dim=-1).to(v.dtype) @ v


def decode_sdpa(p):
    q, k, v, bias = last_query(p)
    mask = bias.to(q.dtype).expand(*q.shape[:3], p.n)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)


def decode_sdpa_without_bias(p):
    """It computes less than the others, by the fastest kernel."""
    q, k, v, _ = last_query(p)
    return lambda: F.scaled_dot_product_attention(q, k, v, scale=1.0)


def decode_flex(p):
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v, bias = last_query(p)
    if p.device == "cuda":
        torch._dynamo.reset()
        flex_attention = torch.compile(flex_attention, dynamic=False)
    return lambda: flex_attention(q, k, v, score_mod=lambda s, batch, head, i, j: s + bias[j], scale=1.0)


def last_query(p):
    """q [batch, heads, 1, d], k and v [batch, heads, n, d], and the biases [n] of the last query's keys."""
    q, k, v = (x.bfloat16() for x in (p.q[..., -1:, :], p.k, p.v))
    return q, k, v, p.b[: p.n].clone()


DECODING = {
    "matmul": decode_matmul,
    "SDPA": decode_sdpa,
    "SDPA without a bias": decode_sdpa_without_bias,
    "FlexAttention": decode_flex,
}


def decoding_error(name, device="cuda"):
    """The relative error of a rival against its formula in double."""
    p = Problem(256, batch=2, heads=3, device=device)
    y = DECODING[name](p)().double()
    q, k, v, bias = (x.double() for x in last_query(p))
    if DECODING[name] is decode_sdpa_without_bias:
        bias = 0 * bias
    expected = torch.softmax(q @ k.transpose(-1, -2) + bias, dim=-1) @ v
    return ((y - expected).abs().max() / expected.abs().max()).item()


def largest_error(name, device="cuda"):
    """The relative error of a rival against its formula in double, at a small size."""
    return max(error_of(name, causal, device) for causal in (False, True))


def error_of(name, causal, device):
    p = Problem(256, batch=2, heads=3, causal=causal, device=device)
    y = RIVALS[name](p)().double()
    q, k, v, bias = (x.double() for x in (p.q, p.k, p.v, toeplitz(p.b, p.n)))
    if RIVALS[name] is paper:
        products = positive_features(q, p.w.double()).transpose(-1, -2) @ positive_features(k, p.w.double())
        weights = products * torch.exp(bias)
    else:
        weights = torch.exp(q @ k.transpose(-1, -2) + bias)
    expected = (weights @ v) / weights.sum(-1, keepdim=True)
    return ((y - expected).abs().max() / expected.abs().max()).item()


def check(name, error, device="cuda"):
    """The error of a rival or the reason why it failed, and whether it is right."""
    try:
        found = error(name, device)
        return f"error {found:.1g}", found < (1e-4 if name.endswith("fp32") else 2e-2)
    except Exception as failure:
        return reason(failure), False


def reason(failure):
    return (str(failure).splitlines() or [type(failure).__name__])[0][:160]


def once(run):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return max(start.elapsed_time(stop), 1e-4)


def milliseconds(run):
    """Like clock.cuh: the median of seven samples. Short calls run in a graph; one of 100 ms is measured once."""
    run()
    first = once(run)
    if first >= 100:
        return first
    first = once(run)
    calls = min(200, math.ceil(1 / first))
    work = lambda: [run() for _ in range(calls)]
    if first < 1:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            work = graph.replay
        except Exception:  # calls that cannot be captured are queued by the host
            torch.cuda.synchronize()
    once(work)
    return statistics.median(once(work) for _ in range(7)) / calls


def measure(name, n, batch, heads, direction, passes, m=None):
    """{"ms": .., "bytes": in addition to inputs} or {"failed": reason}."""
    problem = lambda: Problem(n, batch, heads, direction == "causal", passes == "both")
    return timed(problem, lambda p: RIVALS[name](p, m) if m else RIVALS[name](p))


def measure_decoding(name, n, batch, heads):
    """The same of the next token after n - 1 others."""
    return timed(lambda: Problem(n, batch, heads), DECODING[name])


def timed(problem, rival):
    try:
        p = problem()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run = rival(p)
        ms = milliseconds(run)
        return {"ms": ms, "bytes": torch.cuda.max_memory_allocated() - before}
    except Exception as error:
        return {"failed": reason(error)}
    finally:
        run = p = None
        gc.collect()


def check_all(rivals, error):
    if not torch.cuda.is_available():
        return {"remark": "PyTorch is left out: it finds no GPU"}
    found = {name: check(name, error) for name in rivals}
    words = (f"{name} {said}{'' if right else ', left out'}" for name, (said, right) in found.items())
    return {
        "remark": f"PyTorch {torch.__version__}, compared with its formulas in double: {'; '.join(words)}",
        "names": [name for name, (_, right) in found.items() if right],
    }


ANSWERS = {
    "check": lambda _: check_all(RIVALS, largest_error),
    "measure": lambda arguments: measure(*arguments),
    "check_decoding": lambda _: check_all(DECODING, decoding_error),
    "decode": lambda arguments: measure_decoding(*arguments),
}


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    for line in sys.stdin:
        ((what, arguments),) = json.loads(line).items()
        print(json.dumps(ANSWERS[what](arguments)), flush=True)
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:
            sys.exit(f"{line.strip()}: {reason(error)}")


if __name__ == "__main__":
    main()
