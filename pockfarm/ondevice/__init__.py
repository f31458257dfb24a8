"""Train on the device itself, from Python, without a farm: NumPy arrays in, NumPy arrays out.

    from pockfarm.ondevice import Step

    step = Step("model.pfb")                  # of a bundle that was built with `library: true` in its spec
    for x, y in batches:                      # samples first, as many as `step.samples`
        print(step.train(x, y))               # the loss; step.loss is the last one
    step.save("trained.safetensors")
    weights = step.parameters()               # {name: array}

Needs Linux with glibc 2.31 or newer, Python 3.9 and NumPy; nothing else of PockFarm is imported. A bundle holds native
code, which runs in this process: its files are compared with its manifest before any is loaded, and `digest` says which
bundle it must be (docs/on-device.md).

Any number of steps may live in a process, of one bundle or of several; each has weights, memory and threads of its own.
Different threads may use different steps at the same time. A step must be made after `fork`.
"""

from pockfarm.ondevice.arrays import Tensor
from pockfarm.ondevice.errors import StepError
from pockfarm.ondevice.step import Score, Step

__all__ = ["Score", "Step", "StepError", "Tensor"]
