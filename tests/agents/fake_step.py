"""A stand-in for the training binary: a script with the contract's commands and events, and bundles around it.

It "trains" one number towards the mean of the labels, so that losses fall and weights change for a checkable reason.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

NEVER = Path("/never")

SCRIPT = """#!@PYTHON@ -S
import json, os, signal, struct, sys, time
BEHAVIOUR = "@BEHAVIOUR@"
stopping = []
signal.signal(signal.SIGTERM, signal.SIG_IGN if BEHAVIOUR == "ignore-term" else lambda *_: stopping.append(1))

def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)

def fail(cause, code, message, exit_code):
    say("error", cause=cause, code=code, message=message)
    sys.exit(exit_code)

def options():
    flags = {"--save-best"} & set(sys.argv)
    found, words = {"--weights": [], "--input": [], **dict.fromkeys(flags, True)}, sys.argv[2:]
    words = [word for word in words if word not in flags]
    for name, value in zip(words[::2], words[1::2]):
        if name in ("--weights", "--input"):
            found[name].append(value)
        else:
            found[name] = value
    return found

def read_npy(path):
    data = open(path, "rb").read()
    length = struct.unpack("<H", data[8:10])[0]
    body = data[10 + length:]
    return struct.unpack("<%df" % (len(body) // 4), body) if b"<f4" in data[:10 + length] else \\
        struct.unpack("<%dq" % (len(body) // 8), body)

command, given = sys.argv[1], options()
if command == "tune":
    say("start", threads=int(given.get("--threads", 1)))
    for trial in range(2):
        for variant, us in enumerate((100.0, 80.0, 98.0)):
            say("variant", trial=trial, variant=variant, rounds=9, us=[us - 1, us, us + 1],
                ratio=[us / 100 - 0.01, us / 100, us / 100 + 0.01], difference=None if trial and variant else 1e-6)
    say("done", trials=2)
    sys.exit(0)
weight = float(open(given["--weights"][-1]).read())
labels = read_npy(given["--labels"]) if "--labels" in given else (1.0,)
for named in given["--input"]:
    if any(value != value for value in read_npy(named.split("=", 1)[1])):
        fail("data", "data.nan", "input holds NaN at sample 0", 3)
target = sum(labels) / len(labels)
say("start", arena_bytes=1000, weights_bytes=64, optimizer_bytes=32, threads=int(given.get("--threads", 1)))
if BEHAVIOUR == "crash":
    print("about to crash", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL) if os.getpid() != 1 else os._exit(139)
if BEHAVIOUR == "garbage":
    print("this is not JSON", flush=True)
    time.sleep(60)
if BEHAVIOUR == "escape" and os.fork() == 0:
    os.setsid()
    while True:
        open("out/alive", "w").write(str(time.time()))
        time.sleep(0.05)
if BEHAVIOUR == "big-file":
    open("out/big", "wb").write(b"x" * (1 << 26))
if BEHAVIOUR == "memory":
    block = bytearray(1 << 33)
steps, done, rate = int(given.get("--steps", 0)), 0, float(given.get("--learning-rate", 0.1))
validated, best = [], None
def validate():
    global best
    held_out = read_npy(given["--eval-labels"]) if "--eval-labels" in given else \\
        labels[len(labels) - int(len(labels) * float(given["--validation"]) + 0.5):]
    # What is held out gets worse from step 6 on.
    loss = sum((weight - label) ** 2 for label in held_out) / len(held_out) + max(0, done - 6)
    say("validation", step=done, samples=len(held_out), loss=loss, accuracy=None)
    validated.append(loss)
    if loss == min(validated):
        best = (done, weight)
def impatient():
    return len(validated) - 1 - validated.index(min(validated)) >= int(given.get("--patience", steps)) \\
        if validated else False
if command in ("train", "profile"):
    while done < steps and not (stopping and BEHAVIOUR != "ignore-term") and not impatient():
        loss = (weight - target) ** 2
        weight -= rate * 2 * (weight - target)
        time.sleep(0.2 if BEHAVIOUR in ("slow", "ignore-term", "escape") else 0.001)
        done += 1
        told = {} if BEHAVIOUR == "older" or command == "profile" else {"learning_rate": rate}
        is_lost = BEHAVIOUR == "diverge" or (BEHAVIOUR == "diverge-late" and done == 5)
        us = 3000.0 if BEHAVIOUR == "warms-up" and done <= 2 else 1000.0 + done
        say("step", step=done, loss=None if is_lost else loss, us=us, **told)
        while BEHAVIOUR == "held" and done >= @HELD_AT@ and not stopping and not os.path.exists("@GATE@"):
            time.sleep(0.01)
        if BEHAVIOUR == "diverge-late" and is_lost:
            if "--save-best" in given and best:
                open(given["--save"], "w").write(repr(best[1]))
            say("error", cause="user", code="train.diverged", message="the loss of step 5 is NaN", step=done)
            sys.exit(2)
        is_due = done % int(given.get("--eval-every", 2)) == 0 or done == steps
        if is_due and {"--validation", "--eval-labels"} & set(given):
            validate()
    if command == "profile":
        for index, phase in enumerate(("forward", "backward", "update")):
            say("kernel", index=index, name="k%d" % index, phase=phase, us=10.0 * (index + 1), flops=100, bytes_read=8,
                bytes_written=4)
if command == "eval":
    say("eval", samples=len(labels), loss=(weight - target) ** 2, accuracy=0.5)
for name in ("--save", "--out"):
    if name in given:
        kept = best if "--save-best" in given and best else (done, weight)
        with open(given[name], "w") as file:
            file.write(repr(kept[1]))
@THEN@
end = {"outcome": "stopped" if stopping else "stopped_early" if done < steps and impatient() else "completed"}
if best:
    end["best_step"] = best[0]
if "--save" in given:
    end["saved_step"] = (best if "--save-best" in given and best else (done, weight))[0]
say("stopped" if stopping else "done", peak_rss_bytes=4096, steps=done,
    **(end if command == "train" and BEHAVIOUR != "older" else {}))
"""


def script(behaviour: str = "normal", *, then: str = "", gate: Path = NEVER, held_at: int = 1) -> bytes:
    """`then`: Python code that runs after the command's work, before its last event. "held" makes `held_at` steps, and
    goes on when the file `gate` is there."""
    filled = {"PYTHON": sys.executable, "BEHAVIOUR": behaviour, "THEN": then, "GATE": gate, "HELD_AT": held_at}
    text = SCRIPT
    for name, value in filled.items():
        text = text.replace(f"@{name}@", str(value))
    return text.encode()


def manifest(files: Mapping[str, bytes], **changes: object) -> bytes:
    listed = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    whole = {
        "schema": "pockfarm.bundle/1",
        "target": "x86-64-v3",
        "inputs": [{"name": "input", "dtype": "f32", "shape": [4, 2]}],
        "required_features": [],
        "files": listed,
        **changes,
    }
    return json.dumps(whole).encode()


def bundle(behaviour: str = "normal", *, step: bytes | None = None, **changes: object) -> bytes:
    """A whole bundle whose binary is the script."""
    files = {"bin/step": step or script(behaviour), "weights.safetensors": b"5.0"}
    return archive({**files, "manifest.json": manifest(files, **changes)})


def archive(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()
