"""Mistakes in Python programs."""

from __future__ import annotations

from tests.mistakes.record import DOWN, FAILED, REFUSED, USAGE, Mistake

_NET = (
    "import torch; torch.manual_seed(1); net = torch.nn.Linear(4, 3); x, y = torch.randn(8, 4), torch.arange(8) % 3\n"
)
SDK = (
    Mistake("sdk", "no farm there", "pockfarm.Client('http://127.0.0.1:9', 'k').devices()", "no answer",
            "http://127.0.0.1:9", "pockfarm doctor", DOWN),
    Mistake("sdk", "a wrong key", "pockfarm.Client(client.url, 'wrong').devices()", "not known", "auth.invalid",
            "api-key", REFUSED),
    Mistake("sdk", "a misspelt setting", "client.start_run(bundle, stpes=3)", "no such setting", "stpes",
            "did you mean 'steps'?", USAGE),
    Mistake("sdk", "a misspelt mode", "client.start_run(bundle, mode='trian')", "must be one of", "mode", "train",
            USAGE),
    Mistake("sdk", "a run that there is not", "client.report('run_0')", "no run", "run_0", "GET /runs", REFUSED),
    Mistake("sdk", "no such model", "client.compile(files / 'nothing.onnx', plan='full', spec='', target='aarch64')",
            "No such file", "nothing.onnx", "name an ONNX model", USAGE),
    Mistake("sdk", "labels beyond the classes",
            "client.start_run(bundle, mode='train', dataset=client.upload_dataset(files / 'labels.npz').digest)",
            "3 to 12", "dataset.y", "number the classes from 0", REFUSED),
    Mistake("sdk", "no data", _NET + "pockfarm.fine_tune(net, x)", "no data to train on", "give data", "data=(x, y)",
            USAGE),
    Mistake("sdk", "a misspelt keyword", _NET + "pockfarm.fine_tune(net, x, (x, y), stpes=3)", "no such setting",
            "stpes", "did you mean 'steps'?", USAGE),
    Mistake("sdk", "pictures as bytes", _NET + "pockfarm.fine_tune(net, x, (x.to(torch.uint8), y), steps=1)", "uint8",
            "'input'", "convert (and scale)", USAGE),
    Mistake("sdk", "another shape than the example's",
            _NET + "pockfarm.fine_tune(net, x, (torch.randn(8, 5), y), steps=1)", "have shape [5]",
            "the samples of 'input'", "those of example_inputs [4]", USAGE),
    Mistake("sdk", "inputs that the model does not take", _NET + "pockfarm.fine_tune(net, torch.randn(8, 5), (x, y))",
            "does not take", "example_inputs", "(8x5 and 4x3)", USAGE),
    Mistake("sdk", "labels as one-hot rows", _NET + "pockfarm.fine_tune(net, x, (x, torch.eye(3)[y]), steps=1)",
            "shape [3] per sample", "the labels", "y.argmax(-1)", USAGE),
    Mistake("sdk", "labels beyond the classes of a module", _NET + "pockfarm.fine_tune(net, x, (x, y + 3), steps=1)",
            "3 to 5", "data: labels 'y'", "number the classes from 0", USAGE),
    Mistake("sdk", "fewer labels than samples", _NET + "pockfarm.fine_tune(net, x, (x, y[:-1]), steps=1)",
            "different numbers of samples", "'y': 7", "first axis", USAGE),
    Mistake("sdk", "a misspelt plan", _NET + "pockfarm.fine_tune(net, x, (x, y), plan='biasonly')", "no preset",
            "plan", "did you mean 'bias-only'?", USAGE),
    Mistake("sdk", "a misspelt key of a plan", _NET + "pockfarm.fine_tune(net, x, (x, y), plan={'updat': []})",
            "unknown field", "plan.updat", "did you mean 'update'?", USAGE),
    Mistake("sdk", "something else as the model", "pockfarm.fine_tune(42, None, (1, 2))", "example_inputs",
            "a module", "such as x[:8]", USAGE),
    Mistake("sdk", "tensors on another device", _NET + "pockfarm.fine_tune(net.to('meta'), x, (x, y), steps=1)",
            "meta device", "weight", "module.to_empty(device='cpu')", USAGE),
    Mistake("sdk", "steps and epochs at once", _NET + "pockfarm.fine_tune(net, x, (x, y), steps=1, epochs=1)",
            "both say how long", "steps and epochs", "give one", USAGE),
    Mistake("sdk", "a rate that makes the loss explode",
            _NET + "pockfarm.fine_tune(net, x, (x * 100, y), steps=60, " "learning_rate=1e6)", "diverged", "at step",
            "lower the learning rate", FAILED),
)  # fmt: skip
