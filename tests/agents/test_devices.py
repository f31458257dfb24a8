"""Device modules on SYNTHETIC boards: files and tool outputs written here from the documented formats.

Nothing below was read from a real board. Source of each format: the docstring of the device module concerned
(`device_agents/devices/*.py`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from compiler import targets
from device_agents.devices import (
    DEVICE_KINDS,
    Board,
    Counter,
    DeviceKind,
    Reading,
    host,
    jetson,
    raspberry_pi,
    snapdragon,
)
from device_agents.devices.board import run_tool
from device_agents.devices.describe import describe_device
from device_agents.devices.emulated import EMULATED_BOARDS
from device_agents.errors import EnrolmentError

CPUFREQ = {
    f"/sys/devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq": f"{freq}\n" for n, freq in ((0, 1500000), (1, 1800000))
}
PI_4 = {
    **CPUFREQ,
    "/proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
    "/sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "/sys/class/thermal/thermal_zone0/temp": "48199\n",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
}
PI_5 = {**PI_4, "/proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0"}
PMIC = """     3V7_WL_SW_A current(0)=0.10000000A
   VDD_CORE_A current(7)=2.00000000A
     3V7_WL_SW_V volt(8)=3.70000000V
   VDD_CORE_V volt(15)=0.80000000V
     EXT5V_V volt(24)=5.10000000V
"""
ORIN_NANO = {
    **CPUFREQ,
    "/proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0",
    "/proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "/sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "/sys/class/thermal/thermal_zone0/temp": "51500\n",
    "/sys/class/thermal/thermal_zone8/type": "tj-thermal\n",
    "/sys/class/thermal/thermal_zone8/temp": "52343\n",
    "/sys/class/hwmon/hwmon1/name": "ina3221\n",
    "/sys/class/hwmon/hwmon1/in1_label": "VDD_IN\n",
    "/sys/class/hwmon/hwmon1/in1_input": "5000\n",
    "/sys/class/hwmon/hwmon1/curr1_input": "920\n",
    "/sys/class/hwmon/hwmon1/in2_label": "VDD_CPU_GPU_CV\n",
    "/sys/class/hwmon/hwmon1/in2_input": "5000\n",
    "/sys/class/hwmon/hwmon1/curr2_input": "200\n",
}
TEGRASTATS = (
    "11-21-2026 12:00:00 RAM 2452/7620MB (lfb 4x4MB) SWAP 0/3810MB (cached 0MB) CPU [2%@729,1%@729,off,off] "
    "GR3D_FREQ 0% cpu@47.9C tj@49.2C VDD_IN 4563mW/4500mW VDD_CPU_GPU_CV 604mW/600mW VDD_SOC 1410mW/1400mW\n"
)
AGX = {
    **ORIN_NANO,
    "/proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0",
}
SM8550 = {
    **CPUFREQ,
    "/proc/device-tree/compatible": "qcom,sm8550-qrd\0qcom,sm8550\0",
    "/sys/class/thermal/thermal_zone3/type": "cpu-1-0\n",
    "/sys/class/thermal/thermal_zone3/temp": "61000\n",
    "/sys/class/thermal/thermal_zone4/type": "battery\n",
    "/sys/class/thermal/thermal_zone4/temp": "90000\n",
    "/sys/class/power_supply/battery/status": "Discharging\n",
    "/sys/class/power_supply/battery/current_now": "-850000\n",
    "/sys/class/power_supply/battery/voltage_now": "4000000\n",
}
THERMAL_SERVICE = """IsStatusOverride: false
Thermal Status: 2
Current temperatures from HAL:
	Temperature{mValue=58.4, mType=0, mName=CPU0, mStatus=1}
	Temperature{mValue=63.9, mType=0, mName=CPU1, mStatus=2}
	Temperature{mValue=70.0, mType=2, mName=BATTERY, mStatus=0}
"""
BATTERY = "Current Battery Service state:\n  AC powered: false\n  level: 83\n  voltage: 4170\n  temperature: 281\n"


def synthetic(root: Path, files: Mapping[str, str], tools: Mapping[str, str] | None = None) -> Board:
    """A board made of text."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def tool(argv: Sequence[str], timeout_s: float) -> str | None:
        assert timeout_s <= 2.0
        return (tools or {}).get(" ".join(argv))

    return Board(root, tool)


def kind_named(name: str) -> DeviceKind:
    return next(kind for kind in DEVICE_KINDS if kind.name == name)


def test_raspberry_pi_4(tmp_path: Path) -> None:
    board = synthetic(tmp_path, PI_4, {"vcgencmd get_throttled": "throttled=0x50005\n"})
    assert raspberry_pi.KIND.detect(board) == "raspberry-pi-4"
    reading = raspberry_pi.KIND.read(board)
    assert reading == Reading(temperature_c=48.199, frequency_hz=1.65e9, throttled=True)
    assert raspberry_pi.KIND.facts(board) == {
        "model": "Raspberry Pi 4 Model B Rev 1.4",
        "governor": "ondemand",
        "throttled_since_boot": "0x5",
    }


@pytest.mark.parametrize(
    ("model", "device_class"),
    [
        ("Raspberry Pi 3 Model B Plus Rev 1.3", "raspberry-pi-3"),
        ("Raspberry Pi Compute Module 3 Rev 1.0", "raspberry-pi-3"),
        ("Raspberry Pi Zero 2 W Rev 1.0", "raspberry-pi-3"),
        ("Raspberry Pi Compute Module 4 Rev 1.1", "raspberry-pi-4"),
        ("Raspberry Pi Zero W Rev 1.1", None),
        ("Raspberry Pi 2 Model B Rev 1.1", None),
    ],
)
def test_raspberry_pi_by_its_model(tmp_path: Path, model: str, device_class: str | None) -> None:
    board = synthetic(tmp_path, {**PI_4, "/proc/device-tree/model": f"{model}\0"})
    assert raspberry_pi.KIND.detect(board) == device_class
    if device_class is not None:
        assert targets.load(raspberry_pi.KIND.targets[device_class][0]).device_class == device_class


@pytest.mark.parametrize(("bits", "throttled"), [("0x0", False), ("0x50000", False), ("0x8", True), ("0x1", True)])
def test_raspberry_pi_bits_of_now_only(tmp_path: Path, bits: str, throttled: bool) -> None:
    board = synthetic(tmp_path, PI_4, {"vcgencmd get_throttled": f"throttled={bits}\n"})
    assert raspberry_pi.KIND.read(board).throttled is throttled


def test_raspberry_pi_without_vcgencmd(tmp_path: Path) -> None:
    alarm = {"/sys/class/hwmon/hwmon2/name": "rpi_volt\n", "/sys/class/hwmon/hwmon2/in0_lcrit_alarm": "1\n"}
    assert raspberry_pi.KIND.read(synthetic(tmp_path / "a", PI_4)).throttled is None
    assert raspberry_pi.KIND.read(synthetic(tmp_path / "b", {**PI_4, **alarm})).throttled is True
    firmware = {**PI_4, **alarm, "/sys/devices/platform/soc/soc:firmware/get_throttled": "50000\n"}
    assert raspberry_pi.KIND.read(synthetic(tmp_path / "c", firmware)).throttled is False


def test_raspberry_pi_5_power_is_the_sum_of_whole_rails(tmp_path: Path) -> None:
    board = synthetic(tmp_path, PI_5, {"vcgencmd pmic_read_adc": PMIC})
    assert raspberry_pi.KIND.detect(board) == "raspberry-pi-5"
    reading = raspberry_pi.KIND.read(board)
    assert reading.power_mw == pytest.approx(1000 * (0.1 * 3.7 + 2.0 * 0.8))
    assert reading.power_sensor == "pmic rails"
    assert raspberry_pi.pmic_power_mw("nonsense") is None


def test_jetson_orin_nano(tmp_path: Path) -> None:
    board = synthetic(tmp_path, ORIN_NANO, {"nvpmodel -q": "NV Fan Mode:quiet\nNV Power Mode: 15W\n0\n"})
    assert jetson.KIND.detect(board) == "jetson-orin-nano"
    reading = jetson.KIND.read(board)
    assert reading.power_mw == pytest.approx(4600.0)
    assert reading.power_sensor == "ina3221 VDD_IN"
    assert reading.temperature_c == pytest.approx(52.343)
    assert jetson.KIND.facts(board)["power_mode"] == "15W"


def test_jetson_by_tegrastats(tmp_path: Path) -> None:
    files = {name: text for name, text in ORIN_NANO.items() if "hwmon" not in name}
    board = synthetic(tmp_path, files, {"tegrastats --interval 100": TEGRASTATS})
    reading = jetson.KIND.read(board)
    assert reading.power_mw == 4563.0
    assert reading.power_sensor == "tegrastats VDD_IN"
    assert jetson.KIND.read(synthetic(tmp_path / "none", files)).power_mw is None


def test_jetson_agx_sums_its_rails(tmp_path: Path) -> None:
    assert jetson.KIND.detect(synthetic(tmp_path, AGX)) == "jetson-agx-orin"
    rails = {"VDD_GPU_SOC": 3000.0, "VDD_CPU_CV": 1000.0, "VIN_SYS_5V0": 2000.0}
    assert jetson.total_power(rails) == (6000.0, "VDD_CPU_CV+VDD_GPU_SOC+VIN_SYS_5V0")


def test_snapdragon_linux(tmp_path: Path) -> None:
    board = synthetic(tmp_path, SM8550)
    assert snapdragon.KIND.detect(board) == "snapdragon-8-gen-2"
    reading = snapdragon.KIND.read(board)
    assert reading.temperature_c == 61.0
    assert reading.power_mw == pytest.approx(3400.0)
    assert reading.throttled is None


def test_snapdragon_charging_gives_no_power(tmp_path: Path) -> None:
    files = {**SM8550, "/sys/class/power_supply/battery/status": "Charging\n"}
    assert snapdragon.KIND.read(synthetic(tmp_path, files)).power_mw is None


def test_snapdragon_under_android(tmp_path: Path) -> None:
    files = {"/system/build.prop": "ro.build.version.sdk=34\n"}
    tools = {"getprop ro.soc.model": "SM8550\n", "dumpsys thermalservice": THERMAL_SERVICE, "dumpsys battery": BATTERY}
    board = synthetic(tmp_path, files, tools)
    assert snapdragon.KIND.detect(board) == "snapdragon-8-gen-2"
    reading = snapdragon.KIND.read(board)
    assert (reading.temperature_c, reading.throttled) == (63.9, True)
    assert snapdragon.KIND.facts(board)["battery_temperature_c"] == "28.1"


def test_host_reads_rapl_and_cooling(tmp_path: Path) -> None:
    files = {
        **CPUFREQ,
        "/sys/class/powercap/intel-rapl:0/name": "package-0\n",
        "/sys/class/powercap/intel-rapl:0/energy_uj": "5000000\n",
        "/sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850\n",
        "/sys/class/powercap/intel-rapl:1/name": "package-1\n",
        "/sys/class/powercap/intel-rapl:1/energy_uj": "7000000\n",
        "/sys/class/powercap/intel-rapl:0:0/name": "core\n",
        "/sys/class/powercap/intel-rapl:0:0/energy_uj": "3000000\n",
        "/sys/class/thermal/thermal_zone1/type": "x86_pkg_temp\n",
        "/sys/class/thermal/thermal_zone1/temp": "70000\n",
        "/sys/class/thermal/cooling_device0/type": "Processor\n",
        "/sys/class/thermal/cooling_device0/cur_state": "2\n",
        "/sys/class/thermal/cooling_device1/type": "Fan\n",
        "/sys/class/thermal/cooling_device1/cur_state": "1\n",
    }
    reading = host.KIND.read(synthetic(tmp_path, files))
    counters = {"rapl package-0": Counter(5000.0, 262_143_328.85), "rapl package-1": Counter(7000.0)}
    assert reading == Reading(70.0, 1.65e9, True, counters=counters)


@pytest.mark.parametrize("kind", DEVICE_KINDS, ids=lambda kind: kind.name)
def test_an_empty_board_has_no_sensors_and_no_zeros(tmp_path: Path, kind: DeviceKind) -> None:
    assert kind.read(synthetic(tmp_path, {})) == Reading()


@pytest.mark.parametrize("kind", DEVICE_KINDS, ids=lambda kind: kind.name)
def test_damaged_files_are_no_readings(tmp_path: Path, kind: DeviceKind) -> None:
    files = {
        name: "\x00garbage" for name in {**PI_5, **ORIN_NANO, **SM8550} if "type" not in name and "name" not in name
    }
    assert kind.read(synthetic(tmp_path, files)) == Reading()


def test_every_kind_with_files_is_recognised_as_itself_only(tmp_path: Path) -> None:
    boards = {"raspberry-pi": PI_4, "jetson": ORIN_NANO, "snapdragon": SM8550}
    for name, files in boards.items():
        board = synthetic(tmp_path / name, files)
        found = [kind.name for kind in DEVICE_KINDS if kind.detect(board)]
        assert found == [name, "host"]


def test_targets_named_by_the_agent_exist_and_fit() -> None:
    """The emulated boards have what their targets need; no target name is a slip of the pen."""
    for kind in DEVICE_KINDS:
        for names in kind.targets.values():
            assert set(names) <= set(targets.names())
    for device_class, board in EMULATED_BOARDS.items():
        assert targets.load(board.targets[0]).device_class == device_class
        for name in board.targets:
            assert set(targets.load(name).required_features) <= set(board.features)
    for name in ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx"):
        needed = targets.load(name).required_features
        assert name in host.x86_targets(tuple(needed) + targets.load("x86-64-v3").required_features)
    pi_5 = targets.load("raspberry-pi-5").required_features
    assert host.arm_targets(pi_5) == ("raspberry-pi-5", "raspberry-pi-4", "aarch64")
    assert host.arm_targets(targets.load("raspberry-pi-4").required_features) == ("raspberry-pi-4", "aarch64")
    assert host.arm_targets(targets.load("aarch64").required_features) == ("aarch64",)
    assert host.with_any_arm(("raspberry-pi-5",), pi_5) == ("raspberry-pi-5", "aarch64")
    assert host.with_any_arm(("x86-64-v3",), targets.load("x86-64-v3").required_features) == ("x86-64-v3",)
    assert host.with_any_arm((), ("neon", "vfpv4")) == (), "a 32-bit system on such a board runs none of our binaries"


def test_description_of_this_machine() -> None:
    description = describe_device().description
    assert description.cores >= 1
    assert description.memory_bytes > 1 << 28
    assert description.features
    assert description.measurement_class in ("host", "hardware")


def test_unknown_class_or_runner() -> None:
    with pytest.raises(EnrolmentError, match="known: raspberry-pi-3"):
        describe_device(device_class="toaster", runner="env")
    with pytest.raises(EnrolmentError, match="qemu-user-static"):
        describe_device(runner="no-such-emulator")


def test_a_tool_that_hangs_or_is_missing() -> None:
    script = "import sys, time; print('first line', flush=True); time.sleep(60)"
    assert run_tool([sys.executable, "-c", script], 1.0) == "first line\n"
    assert run_tool(["no-such-tool"], 1.0) is None
    assert run_tool([sys.executable, "-c", "raise SystemExit(1)"], 10.0) is None


def test_device_package_imports_only_the_standard_library_and_cryptography() -> None:
    script = (
        "import sys; before = set(sys.modules); import device_agents.agent; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "ours = {'device_agents', 'cryptography', '_cffi_backend', '_openssl'}; "
        "print(sorted(new - set(sys.stdlib_module_names) - ours))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
