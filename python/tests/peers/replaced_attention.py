# SPDX-License-Identifier: MIT
"""A plugin of pytest for the tests of transformers: each model that they make, of a kind that nprf serves, has its
attention replaced, with a near field that has all pairs. A test that ends with an error by which replaced layers refuse
what they do not have is an expected failure, with that error as its reason (pytest -rx), and so are those by_name."""

import functools
import importlib
import re

import nprf.torch
import pytest
import transformers

kinds = ("t5", "mt5", "umt5", "switch_transformers", "pop2piano", "mpnet", "bert", "roberta", "electra", "bloom", "mpt")
by_name = {
    "MptTest::test_attention_outputs": "MPT does not tell its attention that weights are asked for",
    "MptTest::test_retain_grad_hidden_states_attentions": "MPT does not tell its attention that weights are asked for",
}
refused = re.compile(r"(?:output_attentions|key_value_states|position_bias|mask): expected [^\n]*")


def replace_after(cls):
    """Models of this class, and not those of classes derived from it, are replaced when they have been made."""
    original = cls.__init__

    @functools.wraps(original)
    def replacing(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if type(self) is cls:
            nprf.torch.replace_attention(self, near=10_000)

    cls.__init__ = replacing


def pytest_configure():
    for kind in kinds:
        module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        for name, cls in vars(module).items():
            is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
            if is_model and cls.__module__ == module.__name__ and not name.endswith(("Stack", "PreTrainedModel")):
                replace_after(cls)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when == "call" and report.failed:
        error = refused.search(str(call.excinfo.value))
        reason = error[0] if error else by_name.get(item.nodeid.partition("::")[2])
        if reason:
            report.outcome, report.wasxfail = "skipped", reason
