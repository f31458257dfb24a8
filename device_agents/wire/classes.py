"""The device classes that this release knows. Whoever enrols another kind of board gives its class a name."""

DEVICE_CLASSES = (
    "aarch64",
    "jetson-agx-orin",
    "jetson-orin-nano",
    "raspberry-pi-3",
    "raspberry-pi-4",
    "raspberry-pi-5",
    "snapdragon-8-gen-2",
    "x86-64",
)
