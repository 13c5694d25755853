# SPDX-License-Identifier: MIT
"""The tests that transformers has for all of its models, of those whose attention replace_attention() replaces. The
root of a source distribution of transformers, or of its repository, is on PYTHONPATH."""

import importlib
import sys
import types
import unittest

import torch
import transformers


def module_or_empty(name, of_class):
    """A source distribution has not all of the tests."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        sys.modules[name] = types.ModuleType(name)
        setattr(sys.modules[name], of_class, type(of_class, (), {}))


module_or_empty("tests.exporters.test_export", "ExportTesterMixin")
module_or_empty("tests.generation.test_utils", "GenerationTesterMixin")
common = importlib.import_module("tests.test_modeling_common")


class Inputs:
    """What the tests ask for a small model and a batch for it."""

    batch_size, seq_length, encoder_seq_length, is_training = 3, 9, 9, True  # equal: one mask may go to both
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def __init__(self, config):
        self.config = config

    def get_config(self):
        return self.config(
            vocab_size=99, d_model=self.hidden_size, d_ff=37, d_kv=8, num_layers=2, num_decoder_layers=2, num_heads=4,
            relative_attention_num_buckets=8, dropout_rate=0.1, eos_token_id=1, bos_token_id=0, pad_token_id=0,
            decoder_start_token_id=0,
        )  # fmt: skip

    def prepare_config_and_inputs_for_common(self):
        tokens = {
            "input_ids": (self.batch_size, self.encoder_seq_length),
            "decoder_input_ids": (self.batch_size, self.seq_length),
        }
        inputs = {}
        for name, shape in tokens.items():
            inputs[name] = torch.randint(2, 99, shape)
            mask = (torch.rand(shape) < 0.7).long()
            mask[:, 0] = 1
            inputs[name.replace("input_ids", "attention_mask")] = mask
        return self.get_config(), inputs


class InputsOfEncoder(Inputs):
    is_training = False  # they have no loss

    def get_config(self):
        config = super().get_config()
        config.is_encoder_decoder = False
        return config

    def prepare_config_and_inputs_for_common(self):
        config, inputs = super().prepare_config_and_inputs_for_common()
        return config, {name: each for name, each in inputs.items() if not name.startswith("decoder")}


def of_models(kind, parts, inputs, *mixins):
    class Test(common.ModelTesterMixin, *mixins, unittest.TestCase):
        all_model_classes = tuple(getattr(transformers, kind + part) for part in parts)
        is_encoder_decoder = inputs is Inputs
        test_model_base_model_prefix = None  # T5 has no module of that name

        def setUp(self):
            self.model_tester = inputs(getattr(transformers, f"{kind}Config"))

    return type(f"{kind}Test", (Test,), {})


def of_kind(kind, *parts):
    return of_models(kind, ("Model", "ForConditionalGeneration", *parts), Inputs, common.GenerationTesterMixin)


def of_encoder(kind):
    return of_models(kind, ("EncoderModel",), InputsOfEncoder)


class InputsOfBert(InputsOfEncoder):
    def get_config(self):
        sizes = {
            "vocab_size": 99, "hidden_size": self.hidden_size, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 37, "embedding_size": self.hidden_size, "pad_token_id": 1,
        }  # fmt: skip
        return self.config(**sizes)


class InputsOfBloom(InputsOfEncoder):
    def get_config(self):
        return self.config(vocab_size=99, hidden_size=self.hidden_size, n_layer=2, n_head=4, pad_token_id=0)


class InputsOfMpt(InputsOfEncoder):
    def get_config(self):
        return self.config(vocab_size=99, d_model=self.hidden_size, n_layers=2, n_heads=4, max_seq_len=64)


T5Test = of_kind("T5", "ForQuestionAnswering")
MT5Test = of_kind("MT5", "ForQuestionAnswering")
UMT5Test = of_kind("UMT5", "ForQuestionAnswering")
SwitchTransformersTest = of_kind("SwitchTransformers")
T5EncoderTest, MT5EncoderTest, UMT5EncoderTest = map(of_encoder, ("T5", "MT5", "UMT5"))
MPNetTest, BertTest, RobertaTest, ElectraTest = (
    of_models(kind, ("Model", "ForMaskedLM"), InputsOfBert) for kind in ("MPNet", "Bert", "Roberta", "Electra")
)
BloomTest, MptTest = (
    of_models(kind, ("Model", "ForCausalLM"), inputs, common.GenerationTesterMixin)
    for kind, inputs in (("Bloom", InputsOfBloom), ("Mpt", InputsOfMpt))
)
