"""`pockfarm.ondevice`: steps in this process, against the user's own module in PyTorch."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn.functional import cross_entropy

from pockfarm.ondevice import Step, StepError
from tests.thorough.on_device.trained import IMAGES, STEPS, WORDS, Case, assert_learned, assert_losses

pytestmark = pytest.mark.xdist_group("on-device")


def train(step: Step, case: Case, steps: int = STEPS) -> list[float]:
    return [step.train(case.x, case.y) for _ in range(steps)]


def test_it_learns_what_pytorch_learns(bundle: Path) -> None:
    losses, exact, logits = IMAGES.trained()
    with Step(bundle) as step:
        assert_losses(train(step, IMAGES), losses)
        assert step.loss == pytest.approx(losses[-1], rel=1e-5)
        assert step.steps_done == STEPS
        assert_learned(step.parameters(), exact)
        np.testing.assert_allclose(step.infer(IMAGES.x), logits, rtol=1e-4, atol=1e-5)
        score = step.evaluate(IMAGES.x[:7], IMAGES.y[:7])
    seven = torch.from_numpy(logits[:7])
    assert score.samples == 7
    assert score.loss == pytest.approx(float(cross_entropy(seven, torch.from_numpy(IMAGES.y[:7]))), rel=1e-5)
    assert score.accuracy == float((logits[:7].argmax(1) == IMAGES.y[:7]).mean())


def test_two_libraries_in_one_process_learn_side_by_side(bundle: Path, words_bundle: Path) -> None:
    """A step of each, in turns: the names in both libraries are the same."""
    with Step(bundle) as pictures, Step(words_bundle) as words:
        losses: tuple[list[float], list[float]] = ([], [])
        for _ in range(STEPS):
            losses[0].append(pictures.train(IMAGES.x, IMAGES.y))
            losses[1].append(words.train(WORDS.x, WORDS.y))
        for case, found, step in ((IMAGES, losses[0], pictures), (WORDS, losses[1], words)):
            exact_losses, exact, _ = case.trained()
            assert_losses(found, exact_losses)
            assert_learned(step.parameters(), exact)
        assert {tensor.name for tensor in words.inputs} == {"words"}
        assert words.inputs[0].dtype == np.int64
        assert pictures.samples == 8
        assert words.samples == 6


def test_two_steps_of_one_bundle_know_nothing_of_each_other(bundle: Path) -> None:
    with Step(bundle) as first, Step(bundle) as second:
        before = second.parameters()
        losses = train(first, IMAGES, 3)
        for name, array in second.parameters().items():
            np.testing.assert_array_equal(array, before[name])
        assert second.steps_done == 0
        assert second.loss is None
        assert train(second, IMAGES, 3) == losses


def test_two_threads_train_two_steps_at_once(bundle: Path) -> None:
    """Bit for bit what each does alone."""
    with Step(bundle) as alone:
        expected = train(alone, IMAGES, 40)
    found: dict[int, list[float]] = {}
    steps = [Step(bundle), Step(bundle)]
    ready = threading.Barrier(2)

    def work(number: int) -> None:
        ready.wait()
        found[number] = train(steps[number], IMAGES, 40)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for step in steps:
        step.close()
    assert found == {0: expected, 1: expected}


def test_one_step_is_not_for_two_threads_at_once(bundle: Path) -> None:
    with Step(bundle) as step, step._used():
        refused: list[StepError] = []

        def work() -> None:
            try:
                step.train(IMAGES.x, IMAGES.y)
            except StepError as error:
                refused.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(timeout=60)
        (error,) = refused
        assert error.code == "user.thread"


def test_what_was_learned_goes_on_elsewhere(bundle: Path, tmp_path: Path) -> None:
    """A checkpoint brings the optimizer along; parameters alone begin anew."""
    with Step(bundle) as first:
        train(first, IMAGES, 2)
        first.save(tmp_path / "all.safetensors")
        first.save(tmp_path / "parameters.safetensors", parameters_only=True)
        expected = train(first, IMAGES, 2)
        learned = first.parameters()
    with Step(bundle, tmp_path / "all.safetensors") as second:
        assert second.steps_done == 2
        assert train(second, IMAGES, 2) == expected
    assert set(load_file(tmp_path / "parameters.safetensors")) == set(learned)
    with Step(bundle) as third:
        third.set_parameters(learned)
        assert_learned(third.parameters(), learned)
        np.testing.assert_array_equal(third.infer(IMAGES.x), _infer(bundle, learned))


def _infer(bundle: Path, parameters: dict[str, np.ndarray]) -> np.ndarray:
    with Step(bundle) as step:
        step.set_parameters(parameters)
        return np.asarray(step.infer(IMAGES.x))


def test_the_learning_rate_can_be_set(bundle: Path) -> None:
    with Step(bundle) as step:
        before = step.parameters()
        assert step.learning_rate == 0.05
        step.learning_rate = 0.0
        step.train(IMAGES.x, IMAGES.y)
        for name, array in step.parameters().items():
            np.testing.assert_array_equal(array, before[name])
        for wrong in (-1.0, float("nan")):
            with pytest.raises(StepError, match=r"zero or more \[user.learning-rate\]"):
                step.learning_rate = wrong


X, Y = IMAGES.x, IMAGES.y
WRONG = {
    "another shape": ((X[:, :2], Y), "data.shape", r"'input' has shape \[8, 2, 8, 8\]; it needs \[samples, 3, 8, 8\]"),
    "too few samples": ((X[:3], Y[:3]), "data.count", "takes 8 samples, 3 were given"),
    "counts that differ": ((X, Y[:7]), "data.count", "input has 8, labels has 7"),
    "classes out of range": ((X, Y + 5), "data.label", "values are 0 to 4"),
    "labels that are no integers": (
        (X, Y * 0.5),
        "data.dtype",
        "'labels' has elements of type float64; it needs int64",
    ),
    "NaN": ((X * np.nan, Y), "data.not_finite", "input 'input' holds NaN or Inf"),
    "text": ((np.full(X.shape, "a"), Y), "data.dtype", "it needs float32"),
    "beyond float32": ((X.astype("f8") * 1e300, Y), "data.not_finite", "holds NaN or Inf"),
    "another name": (({"picture": X}, Y), "user.input", r"no input is called 'picture'.*there are: input"),
    "no labels": ((X,), "user.labels", "labels 'labels' must be given"),
    "no samples": ((X[:0], Y[:0]), "data.shape", r"shape \[0, 3, 8, 8\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data_are_refused_and_change_nothing(name: str, bundle: Path) -> None:
    arguments, code, words = WRONG[name]
    with Step(bundle) as step:
        before = step.parameters()
        with pytest.raises(StepError, match=words) as refused:
            step.train(*arguments)
        assert refused.value.code == code
        assert step.steps_done == 0
        for own, array in step.parameters().items():
            np.testing.assert_array_equal(array, before[own])


def test_positions_beyond_a_table_are_refused(words_bundle: Path) -> None:
    with Step(words_bundle) as step, pytest.raises(StepError, match="values are -11 to 10") as refused:
        step.train(WORDS.x + 11, WORDS.y)
    assert refused.value.code == "data.range"


def test_numbers_of_other_types_are_taken_where_nothing_is_lost(bundle: Path) -> None:
    with Step(bundle) as first, Step(bundle) as second:
        assert first.train(X.astype("f8"), Y.astype("i4")) == second.train(X, Y)
        strided = np.asfortranarray(X)
        assert first.train(strided, Y.tolist()) == second.train(X, Y)


def test_a_loss_that_explodes_is_told(bundle: Path) -> None:
    with Step(bundle) as step:
        step.learning_rate = 1e30
        with pytest.raises(StepError, match="lower the learning rate") as refused:
            train(step, IMAGES, 10)
        assert refused.value.code == "train.diverged"
        with pytest.raises(StepError):
            step.save(bundle.with_name("never.safetensors"))
    assert not bundle.with_name("never.safetensors").exists()


def test_weights_that_are_missing_or_anothers_are_refused(
    bundle: Path, folder: Path, words_bundle: Path, tmp_path: Path
) -> None:
    library = folder / "lib" / "libpockfarm_step.so"
    with pytest.raises(StepError, match="a library has no weights") as refused:
        Step(library)
    assert refused.value.code == "weights.missing"
    with pytest.raises(StepError, match="cannot open") as refused:
        Step(library, tmp_path / "nothing.safetensors")
    assert refused.value.code == "weights.file"
    with Step(words_bundle) as words:
        words.save(tmp_path / "words.safetensors")
    with Step(bundle) as step:
        with pytest.raises(StepError, match="weights of another model") as refused:
            step.load(tmp_path / "words.safetensors")
        assert refused.value.code == "weights.unmatched"
        with pytest.raises(StepError, match="has no weights: load") as refused:
            step.train(X, Y)
        step.load(folder / "weights.safetensors")
        step.train(X, Y)
    with Step(library, folder / "weights.safetensors") as step:
        assert step.identity("target") is not None
        assert step.identity("nothing") is None


def test_parameters_that_do_not_fit_are_refused_before_any_is_written(bundle: Path) -> None:
    with Step(bundle) as step:
        before = step.parameters()
        good, bad = before["0.weight"] * 2, before["4.bias"]
        for wrong, code in (
            ({"4.bias": bad[:2]}, "weights.shape"),
            ({"4.bias": bad * np.nan}, "weights.not_finite"),
            ({"bias": bad}, "user.parameter"),
        ):
            with pytest.raises(StepError) as refused:
                step.set_parameters({"0.weight": good, **wrong})
            assert refused.value.code == code
        for name, array in step.parameters().items():
            np.testing.assert_array_equal(array, before[name])


def test_a_closed_step_says_so(bundle: Path) -> None:
    step = Step(bundle)
    step.close()
    step.close()
    with pytest.raises(StepError, match="closed"):
        step.train(X, Y)


def test_too_many_threads_and_unknown_cores_are_refused(bundle: Path) -> None:
    with pytest.raises(StepError, match="1 to 2 threads, not 9"):
        Step(bundle, threads=9)
    with pytest.raises(StepError, match="write auto, off or cores"):
        Step(bundle, pin="fast")


IN_A_PROCESS = """
import os, resource, sys
sys.path.insert(0, {root!r})
from pockfarm.ondevice import Step, StepError
{body}
"""
ROOT = Path(__file__).parents[3]


def said_by(body: str, *arguments: object) -> str:
    program = IN_A_PROCESS.format(root=str(ROOT), body=body)
    completed = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_a_system_without_memory_is_told_not_ended(bundle: Path) -> None:
    body = """
first = Step(sys.argv[1])
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used, used))
try:
    kept = [Step(sys.argv[1]) for _ in range(100)]
except StepError as error:
    print(error.cause, error.code)
"""
    assert said_by(body, bundle).split()[0] == "limits"


def test_a_step_from_before_a_fork_is_refused(bundle: Path) -> None:
    body = """
step = Step(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        step.steps_done
    except StepError as error:
        os._exit(7 if error.code == "user.fork" else 1)
    except BaseException:
        os._exit(2)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert said_by(body, bundle).strip() == "7"


def test_nothing_is_printed_and_little_is_loaded(bundle: Path) -> None:
    """On a board there is NumPy, and no more."""
    body = """
import numpy as np
with Step(sys.argv[1]) as step:
    step.infer(np.zeros((3, 3, 8, 8)))
roots = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
ours = sorted(name for name in sys.modules if name.startswith("pockfarm"))
assert ours == ["pockfarm"] + [f"pockfarm.ondevice{end}" for end in
    ("", ".arrays", ".bundle", ".errors", ".native", ".step")], ours
assert {"onnx", "torch", "httpx", "compiler", "device_agents"} & roots == set(), roots
"""
    assert said_by(body, bundle) == ""
