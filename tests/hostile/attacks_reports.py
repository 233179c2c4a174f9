"""Rows and logs that are read, and drawn, by a report."""

import json

from corpus import UNHARMED, attack


def _rewrite(place, change, copies=1):
    """Let `change(row)` modify every row of metrics; each is written `copies` times, one after another."""
    file = place.run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [json.loads(json.dumps(row)) for row in rows for _ in range(copies)]
    for number, row in enumerate(rows):
        row["time/seconds"] = 0.5 * number
        change(number, row)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@attack("report", ends=UNHARMED)
def a_policy_whose_number_is_no_decimal(place):
    _rewrite(place, lambda _, row: row.update({"eval/arm/²/return": 1.0, f"eval/arm/{'9' * 5000}/share": 1.0}))


@attack("report", ends=UNHARMED)
def a_policy_in_a_row_without_a_time(place):
    def change(number, row):
        row["eval/arm/1/return"] = row["eval/arm/1/share"] = 1.0
        if number == 1:
            del row["time/seconds"]

    _rewrite(place, change)


@attack("report", ends=UNHARMED)
def a_return_that_is_almost_nothing(place):
    _rewrite(place, lambda number, row: row.update({"return": number * 5e-324}))


@attack("report", ends=UNHARMED)
def times_that_are_almost_nothing(place):
    _rewrite(place, lambda _, row: row.update({"time/seconds": 5e-324}))


@attack("report", ends=UNHARMED)
def a_speed_of_almost_nothing(place):
    _rewrite(place, lambda _, row: row.update({"time/steps_per_s": 5e-324, "time/frames_per_s": 1e60}))


@attack("report", ends=UNHARMED)
def a_frame_skip_without_limit(place):
    _rewrite(place, lambda _, row: row.update({"time/steps_per_s": 1e-60, "time/frames_per_s": 1e60}))


@attack("report", ends=UNHARMED)
def a_share_of_many_digits(place):
    said = f"one process: {'9' * 5000}% learning, 1% acting"
    _rewrite(place, lambda _, row: row.update({"time/bottleneck": said}))


@attack("report", ends=UNHARMED)
def a_log_with_a_message_of_a_million_lines(place):
    (place.run / "log.txt").write_text("2026-11-19 10:00:00 run: here\n" + "a\n" * 1_000_000)


@attack("report", ends=UNHARMED)
def a_long_bottleneck_in_every_row(place):
    said = [f"{part} {'x' * 50_000}" for part in ("learner busy", "actors busy")]
    _rewrite(place, lambda number, row: row.update({"time/bottleneck": said[number % 2]}))


@attack("report", ends=UNHARMED)
def rows_with_thousands_of_keys(place):
    keys = {f"loss/k{i}": 0.5 for i in range(1_900)}
    _rewrite(place, lambda _, row: row.update(keys), copies=5)
