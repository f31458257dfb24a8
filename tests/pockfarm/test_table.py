"""Text tables and summaries of reports."""

from __future__ import annotations

from pockfarm.output.summary import (
    TABLE_HEADER,
    curve_text,
    kernel_table,
    loss_curve,
    measured_step,
    report_text,
    table_row,
)
from pockfarm.output.table import bytes_text, energy_text, figure, loss_text, seconds, text_table, time_of, work_text

REPORT: dict[str, object] = {
    "measurement_class": "host",
    "outcome": {"state": "succeeded", "message": ""},
    "measurement": {"median_us": 12_345.6, "p90_us": 13_000.0, "samples_per_second": 648.0, "batch": 8, "threads": 2},
    "memory": {"arena_bytes": 3 << 20, "weights_bytes": 1 << 20, "optimizer_bytes": 0, "peak_rss_bytes": 5 << 20},
    "energy": None,
    "losses": [2.5, None, 1.25],
    "verdict": {"kind": "valid", "rule": "5 blocks"},
    "evaluation_before": {"samples": 10, "loss": 2.5, "accuracy": 0.1},
    "kernels": [
        {"name": "a", "phase": "forward", "us": 10.0, "flops": 20_000, "bytes_read": 500, "bytes_written": 500},
        {"name": "b", "phase": "update", "us": 30.0, "flops": 0, "bytes_read": 0, "bytes_written": 0},
    ],
}


def test_columns_line_up_and_figures_are_right_aligned() -> None:
    lines = text_table(("name", "ms"), [("a", "1.50"), ("long one", "10.25"), ("none", "-")]).splitlines()
    assert lines[0] == "name         ms"
    assert lines[2] == "a          1.50"
    assert lines[3] == "long one  10.25"
    assert lines[4] == "none          -"


def test_a_table_without_rows_is_its_header() -> None:
    assert text_table(("a", "b"), []).splitlines()[0] == "a  b"


def test_absent_figures_are_dashes_and_never_zero() -> None:
    assert figure(None) == bytes_text(None) == time_of(None) == energy_text(None) == loss_text(None) == "-"
    assert figure(0.0) == "0.0"


def test_units() -> None:
    assert bytes_text(3 << 20) == "3.00 MiB"
    assert [energy_text(one) for one in (0.097, 12.34, 1234.5)] == ["97.0 uJ", "12.3 mJ", "1.23 J"]
    assert [work_text(one) for one in (12, 919_040, 2.39e6, 3e12)] == [
        "12 FLOP",
        "919 kFLOP",
        "2.39 MFLOP",
        "3.00 TFLOP",
    ]
    assert [loss_text(one) for one in (2.30585, 0.000421344)] == ["2.306", "0.0004213"]
    assert time_of(1234.5) == "1.23 ms"
    assert figure(1234567.0, 0) == "1,234,567"
    assert seconds(8.44) == "8.4 s"
    assert seconds(125) == "2 min 05 s"


def test_a_row_has_a_cell_for_each_column() -> None:
    row = table_row(REPORT, target="x86-64-v3", plan="full", bundle_bytes=1 << 20)
    cells = dict(zip(TABLE_HEADER, row, strict=True))
    assert cells["step"] == "12.3 ms"
    assert cells["arena"] == "3.00 MiB"
    assert cells["energy"] == "-"
    assert (cells["first loss"], cells["last loss"]) == ("2.500", "1.250")


def test_a_row_of_an_empty_report_is_all_dashes() -> None:
    row = table_row({}, target="t", plan="p", bundle_bytes=0)
    assert list(row[3:9]) == ["-"] * 6


def test_losses_that_are_not_finite_are_left_out_of_the_curve() -> None:
    assert loss_curve(REPORT) == [2.5, 1.25]


def test_a_falling_curve_falls() -> None:
    drawn = curve_text([float(100 - index) for index in range(100)], width=8)
    assert len(drawn) == 8
    assert list(drawn) == sorted(drawn, reverse=True)
    assert curve_text([]) == ""
    assert len(curve_text([1.0, 1.0])) == 2


def test_kernels_are_listed_slowest_first_with_their_rates() -> None:
    lines = kernel_table(REPORT).splitlines()
    assert lines[2].split()[:4] == ["b", "update", "30.0", "us"]
    assert lines[3].split()[2:] == ["10.0", "us", "25.0%", "2.00", "0.100"]
    assert kernel_table({}) == "no kernel was timed: mode profile does that"


def test_the_text_of_a_report_names_what_was_not_measured() -> None:
    text = report_text(REPORT, with_kernels=True)
    assert "median 12.3 ms (no interval: 0 of 5 blocks)" in text
    assert "(no sensor)" in text
    assert "accuracy 10.0%" in text
    assert "valid: 5 blocks" in text


def test_a_step_is_told_with_its_interval_or_why_there_is_none() -> None:
    blocks = [{"step_us": [42_000.0 + 100 * number]} for number in range(5)]
    assert measured_step({"median_us": 42_200.0, "blocks": blocks}) == "42.2 ms (95%: 42.0 to 42.4 ms)"
    assert measured_step({"median_us": 42_000.0, "blocks": blocks[:1]}) == "42.0 ms (no interval: 1 of 5 blocks)"


def test_a_column_of_times_is_right_aligned() -> None:
    lines = text_table(("what", "step"), [("a", "97.1 us"), ("long one", "1,230 ms"), ("none", "-")]).splitlines()
    assert lines[2] == "a          97.1 us"
    assert lines[4] == "none             -"
