"""Plans and specs: what they mean, and what a person reads when one is wrong."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.channels.slices import WHOLE, UpdateSlice
from compiler.errors import CompileError, PlanError, SpecError
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.reading import MAX_TEXT_BYTES, PlainLoader
from compiler.step.plan import resolve_plan
from examples.models import MODELS
from tests.compiler.named import by_name


@pytest.fixture(scope="module")
def mobilenet() -> Graph:
    return import_model(
        MODELS["mobilenet_v2"](width=0.35, resolution=32, classes=10), input_shapes={}, batch=1, batch_norm="fold"
    )


def test_one_meaning_has_one_digest() -> None:
    yaml = SparsePlan.parse("name: p\nupdate:\n  - parameters: fc.weight\n")
    json = SparsePlan.parse(b'{"update": [{"kind": "any", "parameters": ["fc.weight"], "ratio": 1}], "name": "p"}')
    assert yaml == json
    assert yaml.digest == json.digest
    assert yaml.digest != SparsePlan.parse("name: p\nupdate: [{parameters: fc.weight, ratio: 0.5}]").digest
    assert SparsePlan.parse("full").preset == "full"
    assert TrainingSpec.parse("").digest == TrainingSpec.parse("batch: 8").digest


def test_later_rules_override_earlier_ones(mobilenet: Graph) -> None:
    text = """
    preset: bias-only
    update:
      - {parameters: ["blocks.*.expand.weight"], ratio: 0.5}
      - {parameters: ["blocks.1?.expand.weight"]}
      - {parameters: ["blocks.10.expand.weight", "stem.bias"], ratio: 0}
    """
    plan = by_name(mobilenet, resolve_plan(mobilenet, SparsePlan.parse(text)))
    assert plan["blocks.11.expand.weight"] == WHOLE
    half = mobilenet.named_parameters()["blocks.3.expand.weight"].shape[2] // 2
    assert plan["blocks.3.expand.weight"] == UpdateSlice(2, 0, half)
    assert "blocks.10.expand.weight" not in plan
    assert "stem.bias" not in plan
    assert "blocks.0.project.bias" in plan


def test_last_layer_is_the_classifier(mobilenet: Graph) -> None:
    assert set(by_name(mobilenet, resolve_plan(mobilenet, SparsePlan.of_preset("last-layer")))) == {
        "classifier.weight",
        "classifier.bias",
    }


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("name: [", "plan, line 1", "not readable as JSON or YAML"),
        ("- a\n- b", "plan", "expected a mapping"),
        ("preset: ful", "plan.preset", "one of full, bias-only"),
        ("name: x", "plan.update", "trains nothing"),
        ("updat: []", "plan.updat", "did you mean 'update'"),
        ("update: [{parameters: [a], ratio: 1.5}]", "plan.update[0].ratio", "from 0 to 1"),
        ("update: [{parameters: []}]", "plan.update[0].parameters", "a name or a list of names"),
        ("update: [{parameters: [a], knd: bias}]", "plan.update[0].knd", "did you mean 'kind'"),
        ("update: [{parameters: [a], kind: biass}]", "plan.update[0].kind", "one of any, weight, bias"),
    ],
)
def test_wrong_plans_say_where_and_what(text: str, where: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        SparsePlan.parse(text)
    assert caught.value.where == where
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("optimizer: adamw", "say {kind: adamw}"),
        ("schedule: cosine", "say {kind: cosine}"),
        ("loss: next_token", "say {kind: next_token}"),
        ("loss: hinge", ""),
        ("loss: [mse]", ""),
    ],
)
def test_a_kind_alone_is_told_how_to_be_said(text: str, hint: str) -> None:
    with pytest.raises(SpecError, match="expected a mapping") as caught:
        TrainingSpec.parse(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("batch: 0", "spec.batch"),
        ("batch: true", "spec.batch"),
        ("loss: {kind: hinge}", "spec.loss.kind"),
        ("optimizer: {kind: sgd, beta1: 0.9}", "spec.optimizer.beta1"),
        ("optimizer: {learning_rate: .nan}", "spec.optimizer.learning_rate"),
        ("inputs: {x: [1, -2]}", "spec.inputs.x"),
        ("inputs: {x: 3}", "spec.inputs.x"),
        ("memory_limit_bytes: 0", "spec.memory_limit_bytes"),
        ("threads: 1000", "spec.threads"),
        ("convolutions: exact", "spec.convolutions"),
        ("learning_rate: 1", "spec.learning_rate"),
    ],
)
def test_wrong_specs_name_the_field(text: str, where: str) -> None:
    with pytest.raises(SpecError) as caught:
        TrainingSpec.parse(text)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: " + "x" * MAX_TEXT_BYTES, "65,542 bytes, the limit is 65,536"),
        ("name: " + "ü" * (MAX_TEXT_BYTES // 2), "the limit is 65,536"),  # bytes, not characters
        ("update: " + "[" * 17 + "]" * 17, "nested more than 16 levels deep"),
        ("[" * 60_000, "nested more than 16 levels deep"),
        ('{"a":' * 10_000, "nested more than 16 levels deep"),
        ("- " * 30_000, "nested more than 16 levels deep"),
        ("update: [" + "a," * 20_000 + "]", "more than 20,000 values"),
        ('{"update": [' + "1," * 20_000 + "1]}", "more than 20,000 values"),
        ("a: &a [x]\nb: *a", "anchors and aliases"),
        ("a: &a [1]\nb: &b [*a, *a]\nc: [*b, *b]", "anchors and aliases"),
        ("preset: full\npreset: frozen", "field 'preset' is given twice"),
        ('{"preset": "full", "preset": "frozen"}', "field 'preset' is given twice"),
        ("batch: 0x" + "f" * 16, "an integer of 64 bits"),
        ("batch: 0x" + "f" * 5000, "a number of 5,002 characters"),
        ("batch: " + "9" * 5000, "a number of 5,000 characters"),
        ("batch: " + "1:" * 20_000 + "1", "a number of 40,001 characters"),
        ('{"batch": ' + "9" * 30 + "}", "an integer of 100 bits"),
        ('{"batch": ' + "9" * 5000 + "}", "not readable as JSON or YAML"),
        ("name: !!binary aGk=", "the tag '!!binary' is not taken"),
        ("name: !!python/object:os.system x", "is not taken"),
        ('name: "a\\0b"', "U+0000"),
        ('{"name": "a\\ud800"}', "U+D800"),
        ("name: a\ud800", "not readable as JSON or YAML"),
        ("a: 1\n---\na: 2", "not readable as JSON or YAML"),
        ("? [1, 2]\n: 3", "not readable as JSON or YAML"),
    ],
)
def test_texts_beyond_the_limits_are_refused_by_name(text: str, message: str) -> None:
    for parse, error in ((SparsePlan.parse, PlanError), (TrainingSpec.parse, SpecError)):
        with pytest.raises(error) as caught:
            parse(text)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "hint"), [("bce", "{kind: bce_with_logits, on: probabilities}"), ("mae", "kind: l1"), ("Mse", "mse")]
)
def test_names_of_losses_in_other_tools_have_a_hint(kind: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        TrainingSpec.parse(f"loss: {{kind: {kind}}}")
    assert hint in caught.value.hint


def test_an_input_may_be_true_for_good() -> None:
    inputs = dict(TrainingSpec.parse("inputs: {fast: {value: true}, few: {value: [false, 1]}}").inputs)
    assert inputs["fast"].value == (1.0,)
    assert inputs["few"].value == (0.0, 1.0)


@pytest.mark.parametrize("text", ["loss: {on: logits}", '{"loss": {"on": "logits"}}'])
def test_a_name_that_yaml_takes_for_a_truth_value_is_a_name(text: str) -> None:
    assert TrainingSpec.parse(text).loss.on == "logits"
    assert [name for name, _ in TrainingSpec.parse("inputs: {no: [2, 3]}").inputs] == ["no"]
    with pytest.raises(SpecError, match=r"spec\.loss: expected names as keys, got True .*in quotes"):
        TrainingSpec.parse({"loss": {True: "logits"}})


def test_the_limits_hold_for_plain_data_too() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for value, message in (
        (deep, "levels deep"),
        ([0] * 30_000, "values"),
        (1 << 70, "71 bits"),
        ("\ud800", r"U\+D800"),
    ):
        with pytest.raises(SpecError, match=message):
            TrainingSpec.parse({"batch": value})


def test_texts_are_read_by_libyaml_and_looked_at_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    assert issubclass(PlainLoader, yaml.CSafeLoader)
    built = []
    monkeypatch.setattr(PlainLoader, "get_single_data", lambda self: built.append(self))
    for text in ("[" * 60_000, "- " * 30_000, "a," * 30_000 + "[" + "a," * 20_001, "a: &a [x]\nb: *a"):
        with pytest.raises(PlanError):
            SparsePlan.parse(text)
    assert built == []


def test_json_and_yaml_agree_on_characters_and_dates() -> None:
    assert SparsePlan.parse('{"name": "\\ud83d\\ude00", "preset": "full"}').name == "\N{GRINNING FACE}"
    assert SparsePlan.parse("name: 2026-05-01\npreset: full").name == "2026-05-01"
    assert SparsePlan.parse("{name: p, preset: full}").name == "p"  # YAML that begins like JSON


def test_yaml_numbers_without_a_dot_are_numbers() -> None:
    assert TrainingSpec.parse("optimizer: {learning_rate: 1e-3}").optimizer.learning_rate == 1e-3


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for parse in (SparsePlan.parse, TrainingSpec.parse):
        with contextlib.suppress(CompileError):
            assert parse(data).digest.startswith("sha256:")
