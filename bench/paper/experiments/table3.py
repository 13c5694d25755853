# SPDX-License-Identifier: MIT
"""Table 3: translation."""

import functools
import io
import math
import os

import sacrebleu
import sentencepiece
import torch
import torch.nn.functional as F

from .. import data, runs, training
from ..models import Mechanism, Translator
from ..results import Expectation, at_most, bars, below
from ..training import device
from . import Experiment, mechanism_settings

PAD, START, END = 0, 1, 2
LONGEST = 60  # tokens of a sentence
NEAR = 4  # sentences have some 15 tokens
TAYLOR = "Taylor + near field + RPE"

# (encoder, decoder); the paper has 16 random features in the encoder and 24 in the decoder
VARIANTS = (
    ("softmax", "softmax"),
    ("softmax", "PRF"),
    ("PRF", "softmax"),
    ("PRF", "PRF"),
    ("NPRF", "NPRF"),
    ("NPRF + RPE", "NPRF"),
    ("NPRF", "NPRF + RPE"),
    ("NPRF + RPE", "NPRF + RPE"),
    ("softmax + RPE", "softmax + RPE"),
    ("NPRF + RPE", "softmax"),
    (TAYLOR, TAYLOR),
)

SIZES = {  # tokens: of the targets of a batch
    "tiny": dict(steps=2, pairs=300, tokens=64, vocabulary=300, dim=32, layers=1, heads=2, rate=2e-3, test=4),
    "small": dict(steps=600, pairs=29_000, tokens=1024, vocabulary=4000, dim=128, layers=2, heads=4, rate=2e-3, test=300),
    "paper": dict(steps=60_000, pairs=10**7, tokens=4096, vocabulary=10_000, dim=512, layers=6, heads=4, rate=5e-4, test=1000),
}  # fmt: skip


def settings_of(name, features):
    return mechanism_settings(name, features=features, near=NEAR if "near field" in name else 0)


def plan(options):
    size = options.chosen(SIZES)
    return [
        {
            "variant": f"{encoder} | {decoder}",
            "encoder": settings_of(encoder, 16),
            "decoder": settings_of(decoder, 24),
            **size,
        }
        for encoder, decoder in VARIANTS
    ]


@functools.lru_cache(maxsize=1)
def tokenizer(source, pairs, vocabulary):
    """One byte-pair encoding of both languages, learned from the training sentences; kept in a file."""
    path = runs.CACHE / "table3" / f"{source}-{pairs}-{vocabulary}.model"
    if not path.exists():
        sentences = (sentence for pair in data.pairs(source).train[:pairs] for sentence in pair)
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences, model_writer=model, vocab_size=vocabulary, model_type="bpe", pad_id=PAD,
            bos_id=START, eos_id=END, unk_id=3, num_threads=1, minloglevel=2,
        )  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(model.getvalue())
        partial.replace(path)
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def encoded(pairs, codes):
    """(source, target) as lists of tokens that end in END."""
    sides = (codes.encode([pair[i] for pair in pairs]) for i in (0, 1))
    return [tuple(side[: LONGEST - 1] + [END] for side in pair) for pair in zip(*sides)]


def padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows], device=device())


def batches_of(pairs, tokens):
    """Sentences of similar lengths, about `tokens` tokens of the target in each batch."""
    batches, current, size = [], [], 0
    for pair in sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0]))):
        current.append(pair)
        size += len(pair[1])
        if size >= tokens:
            batches.append(current)
            current, size = [], 0
    return batches + ([current] if current else [])


def loss_on(model, batch, smoothing=0.0):
    x, y = padded([source for source, _ in batch]), padded([[START] + target for _, target in batch])
    padding = x == PAD
    logits = model.decode(y[:, :-1], model.encode(x, padding), padding)
    return F.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten(), ignore_index=PAD, label_smoothing=smoothing)


@torch.no_grad()
def translations(model, sources, codes):
    """By the most probable token at each step."""
    found = []
    for first in range(0, len(sources), 100):
        x = padded(sources[first : first + 100])
        padding = x == PAD
        memory = model.encode(x, padding)
        y = torch.full((len(x), 1), START, device=x.device)
        done = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        while y.shape[1] < LONGEST and not done.all():
            token = model.decode(y, memory, padding)[:, -1].argmax(-1).masked_fill(done, PAD)
            y = torch.cat([y, token[:, None]], dim=1)
            done |= token == END
        found += codes.decode([[t for t in row if t > END] for row in y.tolist()])
    return found


def measure(run, progress):
    s = run.settings
    pairs, codes = data.pairs(s["source"]), tokenizer(s["source"], s["pairs"], s["vocabulary"])
    batches = batches_of(encoded(pairs.train[: s["pairs"]], codes), s["tokens"])
    model = Translator(
        s["vocabulary"], LONGEST + 1, s["dim"], s["layers"], s["heads"], Mechanism(**s["encoder"]),
        Mechanism(**s["decoder"]), seed=run.seed,
    ).to(device())  # fmt: skip

    def loss_of(generator):
        chosen = torch.randint(len(batches), (), generator=generator).item()
        return loss_on(model, batches[chosen], smoothing=0.1)

    made = training.train_run(run, model, loss_of, progress)
    loss, bleu = math.inf, -math.inf
    if not made.diverged:
        held_out = batches_of(encoded(pairs.valid[: s["test"]], codes), s["tokens"])
        with torch.no_grad():
            losses = [(loss_on(model, batch).item(), sum(len(y) for _, y in batch)) for batch in held_out]
        loss = sum(each * count for each, count in losses) / sum(count for _, count in losses)
        test = pairs.test[: s["test"]]
        sources = [source for source, _ in encoded(test, codes)]
        bleu = sacrebleu.corpus_bleu(translations(model, sources, codes), [[target for _, target in test]]).score
    return {
        "bleu": bleu,
        "loss": loss,
        "losses": made.losses,
        "ms": made.ms,
        "diverged": made.diverged,
        "data": pairs.name,
    }


def table(results):
    columns = ["encoder", "decoder", "BLEU", "held-out loss, nats a token", "ms a step"]
    return columns, [[*name.split(" | "), *row] for name, *row in results.rows(bleu=1, loss=3, ms=0)]


def draw(results, figure):
    bars(figure.subplots(), results, "bleu", "BLEU, encoder | decoder")


EXPERIMENT = Experiment(
    name="table3",
    title="Table 3: translation",
    claim="PRF in the encoder loses much; normalised and with relative positions in both it holds.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation("PRF in the encoder is worse than softmax", below("bleu", "PRF | softmax", "softmax | softmax")),
        Expectation("PRF in both is worse than PRF in the decoder", below("bleu", "PRF | PRF", "softmax | PRF")),
        Expectation(
            "NPRF + RPE in both is better than PRF in both", below("bleu", "PRF | PRF", "NPRF + RPE | NPRF + RPE")
        ),
        Expectation(
            "NPRF + RPE in both reaches softmax (1 BLEU)",
            at_most("bleu", "softmax | softmax", "NPRF + RPE | NPRF + RPE", 1.0),
        ),
        Expectation(
            "beside a decoder with softmax, NPRF + RPE in the encoder is better than PRF there",
            below("bleu", "PRF | softmax", "NPRF + RPE | softmax"),
        ),
        Expectation(
            "Taylor + near field + RPE in both is near softmax + RPE in both (1 BLEU; not in the paper)",
            at_most("bleu", "softmax + RPE | softmax + RPE", f"{TAYLOR} | {TAYLOR}", 1.0),
        ),
    ),
    notes="BLEU of sacrebleu, of sentences with case, decoded greedily. Cross attention is softmax in all rows. The near field "
    f"are the keys less than {NEAR} tokens away.",
)
