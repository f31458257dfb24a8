"""`make demo`: the whole way, as a user would go it, over HTTP.

A farm comes up on this machine. MobileNetV2 is compiled with three plans and profiled on this machine's agent. A small
CNN learns handwritten digits, first fully on one half, then sparsely on the other half from the first run's weights.
MobileNetV2 is compiled for a Raspberry Pi 4 and runs under emulation; where there is an OpenCL driver, the CNN trains
through it. Then a table, and the farm goes down unless it was up before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from examples.digits import digits_npz
from examples.models import MODELS
from pockfarm.client import Client
from pockfarm.errors import PockfarmError
from pockfarm.output.summary import (
    TABLE_HEADER,
    curve_text,
    evaluation_text,
    loss_curve,
    table_row,
    without_played_times,
)
from pockfarm.output.table import seconds, text_table, time_of
from pockfarm.own_farm import up
from pockfarm.own_farm.state import default_state
from pockfarm.values import Device, Job, Json, Run, optional_number, part

PLANS = Path(__file__).parent / "plans"
MOBILENET_PLANS = ("full", "sparse", "bias-only")
MOBILENET = "mobilenet_v2"
HOST_BATCH, HOST_STEPS = 8, 20
EMULATED_BATCH, EMULATED_STEPS = 1, 2
OPENCL_STEPS = 4
NO_BOARD = "no emulated AArch64 agent here (it needs qemu-aarch64-static), so no Raspberry Pi rows"
NO_OPENCL = "no OpenCL device here (pocl-opencl-icd plays one), so no OpenCL row"
WAITS = "waits for another device"
"""The phase of a run that its device did not get through."""
DIGITS_BATCH, DIGITS_STEPS = 32, 280
"""Ten epochs over one half of the digits."""
DIGITS_SPEC = f"""
batch: {DIGITS_BATCH}
optimizer: {{kind: sgd, learning_rate: 0.05, momentum: 0.9}}
"""
SPARSE_DIGITS = """
name: sparse
update:
  - parameters: ["pointwise.weight"]
    ratio: 0.5
  - parameters: ["pointwise.bias", "classifier.weight", "classifier.bias"]
"""
AGENTS_WITHIN_S = 60.0
QUIET_S = 5.0
"""A line at least this often while something goes on."""
PASSING_STATES = ("queued", "leased", "succeeded")
"""Worth a line only when they last; a success shows in what comes next."""
MOBILENET_SPEC = """
batch: {batch}
optimizer: {{kind: sgd, learning_rate: 0.001, momentum: 0.9}}
"""


@dataclass(slots=True)
class Story:
    """The farm, and the rows that have been measured so far."""

    farm: Client
    started_s: float = field(default_factory=time.monotonic)
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def say(self, message: str) -> None:
        elapsed = int(time.monotonic() - self.started_s)
        print(f"[{elapsed // 60}:{elapsed % 60:02d}] {message}", flush=True)

    def add(self, model: str, device: Device, job: Job, report: Json) -> None:
        """Keep a row for the table, and say its headline now."""
        assert job.bundle_digest is not None
        bundle = self.farm.bundle(job.bundle_digest)
        self.rows.append(
            (model, *table_row(report, target=job.target, plan=job.plan_name, bundle_bytes=bundle.size_bytes))
        )
        median_us = optional_number(part(without_played_times(report), "measurement"), "median_us")
        result = "it works" if median_us is None else f"step {time_of(median_us)}"
        self.say(f"  done: {model} {job.plan_name} on {device.name}: {result} ({device.measurement_class})")


def main() -> int:
    state = default_state()
    was_up = state.is_up()
    try:
        status = up.up(state, say=lambda line: print(line, flush=True))
        with Client(state=state) as farm:
            print(f"the farm is up: {status.url}\ndashboard (opens once): {farm.dashboard_link()}\n", flush=True)
            tell(Story(farm))
    except (PockfarmError, KeyboardInterrupt) as problem:
        print(f"demo: {problem or 'interrupted'}\n  the logs are in {state.logs}", file=sys.stderr)
        return 1
    finally:
        if not was_up:
            up.down(state, say=lambda line: print(line, flush=True))
    print(f"dashboard: {status.url}" + ("" if was_up else " (`make up` brings it back, with all of these runs)"))
    return 0


def tell(story: Story) -> None:
    """All acts in order, then the tables."""
    host = host_device(story)
    model = MODELS[MOBILENET]()
    story.say(f"{MOBILENET}: {len(model):,} bytes of ONNX, 224x224, seeded weights")
    for plan in MOBILENET_PLANS:
        job = compile_on_farm(
            story, MOBILENET, model, plan_file(plan), MOBILENET_SPEC.format(batch=HOST_BATCH), host.targets[0]
        )
        story.add(MOBILENET, host, job, run_on_farm(story, job, host, mode="profile", steps=HOST_STEPS))
    learned = learn_digits(story, host)
    opencl = emulated_device(story, "/opencl", NO_OPENCL)
    if opencl is not None:
        small = MODELS["small_cnn"]()
        job = compile_on_farm(story, "small_cnn", small, "full", DIGITS_SPEC, opencl.targets[0])
        report = run_on_farm(story, job, opencl, mode="profile", steps=OPENCL_STEPS, warmup=1)
        story.add("small_cnn", opencl, job, report)
    board = emulated_device(story, "", NO_BOARD)
    if board is not None:
        for plan in MOBILENET_PLANS:
            job = compile_on_farm(
                story, MOBILENET, model, plan_file(plan), MOBILENET_SPEC.format(batch=EMULATED_BATCH), board.targets[0]
            )
            report = run_on_farm(story, job, board, mode="profile", steps=EMULATED_STEPS, warmup=0)
            story.add(MOBILENET, board, job, report)
    print(f"\n{text_table(('model', *TABLE_HEADER), story.rows)}")
    print("class emulated proves that the binary works there; its times say nothing about a board\n")
    print("\n".join(learned))
    print(f"\nall of it in {seconds(time.monotonic() - story.started_s)}")


def learn_digits(story: Story, host: Device) -> list[str]:
    """Train a small CNN fully on one half of the digits, then sparsely on the other from those weights."""
    model = MODELS["small_cnn"]()
    first, second = (story.farm.upload_dataset(half, name=name) for half, name in digit_halves())
    story.say(f"digits: {first.samples} samples in one half, {second.samples} in the other")
    full = compile_on_farm(story, "small_cnn", model, "full", DIGITS_SPEC, host.targets[0])
    run = start(story, full, host, mode="train", steps=DIGITS_STEPS, dataset=first.digest)
    full_report = follow(story, run, full, host)
    story.add("small_cnn", host, full, full_report)
    sparse = compile_on_farm(story, "small_cnn", model, SPARSE_DIGITS, DIGITS_SPEC, host.targets[0])
    weights = story.farm.run(run.id).trained_weights_digest
    sparse_report = run_on_farm(
        story, sparse, host, mode="train", steps=DIGITS_STEPS, dataset=second.digest, weights=weights
    )
    story.add("small_cnn", host, sparse, sparse_report)
    return [
        *learning_lines("full, first half", full_report),
        *learning_lines("sparse, other half, from those weights", sparse_report),
    ]


def digit_halves() -> list[tuple[bytes, str]]:
    """The digits as two npz files, halves of one seeded shuffle, with their names."""
    names = ("digits-first-half.npz", "digits-second-half.npz")
    return [(digits_npz(slice(start, None, 2)), name) for start, name in enumerate(names)]


def learning_lines(title: str, report: Json) -> list[str]:
    losses = loss_curve(report)
    return [
        f"digits, {title}:",
        f"  loss    {losses[0]:.3f} {curve_text(losses)} {losses[-1]:.3f}",
        f"  before  {evaluation_text(report, 'evaluation_before')}",
        f"  after   {evaluation_text(report, 'evaluation_after')}",
    ]


def plan_file(plan: str) -> str:
    return (PLANS / f"{MOBILENET}-{plan}.yaml").read_text()


def host_device(story: Story) -> Device:
    """This machine's own device, whose agent is always there: it may have to be waited for."""
    deadline = time.monotonic() + AGENTS_WITHIN_S
    while True:
        for device in active_devices(story):
            if device.measurement_class == "host":
                return device
        if time.monotonic() > deadline:
            raise PockfarmError("this machine's agent has not enrolled; see agent-host.log in the logs")
        time.sleep(0.5)


def emulated_device(story: Story, engine: str, missing: str) -> Device | None:
    """The one that plays a board, or (`/opencl`) an accelerator; `missing` is said where there is none."""
    for device in active_devices(story):
        if device.measurement_class == "emulated" and device.targets[0].partition("/")[1:] == engine.partition("/")[1:]:
            return device
    story.say(missing)
    return None


def active_devices(story: Story) -> list[Device]:
    return [device for device in story.farm.devices() if device.state == "active"]


def compile_on_farm(story: Story, name: str, model: bytes, plan: str, spec: str, target: str) -> Job:
    """Post, watch, and wait for the bundle."""
    job = story.farm.compile(model, plan=plan, spec=spec, target=target, name=name)
    title = f"compile {name} {job.plan_name} for {target}"
    show = speaker(story, title)

    def on_look(one: Job) -> None:
        show(one.state, f"{one.stage} {one.fraction:.0%}" if one.stage and one.is_open else "")

    done = story.farm.wait_for_job(job.id, on_look=on_look)
    story.say(f"{title}: {'done' if job.is_open else 'built before'}")
    return done


def run_on_farm(story: Story, job: Job, device: Device, *, mode: str, steps: int, **options: object) -> Json:
    """Start a run on the device, watch it, return its report."""
    return follow(story, start(story, job, device, mode=mode, steps=steps, **options), job, device)


def start(story: Story, job: Job, device: Device, *, mode: str, steps: int, **options: object) -> Run:
    assert job.bundle_digest is not None
    return story.farm.start_run(job.bundle_digest, device=device.id, mode=mode, steps=steps, **options)  # type: ignore[arg-type]


def follow(story: Story, run: Run, job: Job, device: Device) -> Json:
    title = f"{run.mode} {job.model_name} {job.plan_name} on {device.name}"
    show = speaker(story, title)

    def on_look(now: Run) -> None:
        if now.phase == WAITS:  # there is no other: every run of this story is for one device
            reason = story.farm.why(now.id)["message"]
            story.farm.cancel_run(now.id)
            raise PockfarmError(f"{title}: {reason}")
        show(now.state, f"step {now.steps_done} of {now.steps}" if now.steps_done else now.phase)

    story.farm.wait_for_run(run.id, on_look=on_look)
    return story.farm.report(run.id)


def speaker(story: Story, title: str) -> Callable[[str, str], None]:
    """Says when work begins and ends, and in between how far it is every few seconds."""
    last, spoke_s = "", time.monotonic()

    def show(state: str, progress: str) -> None:
        nonlocal last, spoke_s
        is_new = state != last and state not in PASSING_STATES
        if is_new or time.monotonic() - spoke_s > QUIET_S:
            last, spoke_s = state, time.monotonic()
            story.say(f"{title}: {progress or state}")

    return show


if __name__ == "__main__":
    sys.exit(main())
