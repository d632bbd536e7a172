"""Time stamps of log lines, in the forms that loggers write them.

A stamp without a zone is taken as UTC: differences are right, and those are what counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from itertools import islice

_DAY_S = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_HEAD = 160
"""Bytes in which a stamp that leads a line begins."""
_OBJECT = 4096
"""Bytes of a JSON line that are searched for its time."""

_CLOCK = re.compile(rb"(?<!\d)(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_CLOCKS = 3
"""Clocks of a line that are tried: a bar shows durations that look like one."""

_MONTHS = b"jan feb mar apr may jun jul aug sep oct nov dec"
_DATE = re.compile(
    rb"(?:(?<!\d)(?P<year>\d{4})(?P<sep>[-/.])(?P<month>\d\d)(?P=sep)(?P<day>\d\d)[ Tt_] ?"
    rb"|(?<!\d)(?P<month_us>\d\d)/(?P<day_us>\d\d)/(?P<year_us>\d{4})[ ,]{1,2}"
    rb"|(?<![\w/])[IWEFV](?P<year_glog>\d{4})?(?P<month_glog>\d{1,2})(?P<day_glog>\d\d) {1,2}"
    rb"|(?<![\w/])(?P<month_mm>\d\d)/(?P<day_mm>\d\d) {1,2}"
    rb"|\b(?P<name>" + _MONTHS.title().replace(b" ", b"|") + rb") {1,2}(?P<day_name>\d{1,2}) )$"
)
_DATE_SIZE = 18
_ALONE = re.compile(rb"(?:(?:^|[\[(])\s{0,9}|^\s{0,9}\d{1,6}: ?)$")
_AFTER = re.compile(rb"(?:[\])]|:? |$)")
_HALF = re.compile(rb" ([AP])M\b")
_ZONE = re.compile(rb"\s?(?:(?P<utc>[Zz]\b|UTC|GMT)|(?P<zone>[+-]\d\d:?\d\d)\b)")
_YEAR_AFTER = re.compile(rb" {1,2}(?:[A-Z]{3,4} )?(\d{4})\b")
_LATE = re.compile(rb"(?:datetime: | AT )(?=\d{4}-\d\d-\d\d[ T])")
_EPOCH = re.compile(
    rb"""["'](?:@?_?time_?(?:stamp)?(?:_ms|_s)?|ts|wall_?time|created|asctime|date_?time)["']\s?:\s?"""
    rb"""(?:["'](?=\d{4}-)|(?P<epoch>\d{9,13}(?:\.\d{1,9})?)(?![\d.]))"""
    rb"""|^\s{0,9}(?:\d{1,6}: )?:::ML\w{1,9}[\d.]{0,9} (?:\w{1,40} )?(?P<mlperf>\d{10}\.\d{1,9}) """
)
_GUESSED_YEAR = 2000
"""For a stamp without one where nothing is known: a leap year, so that every day exists."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time stamp: `time_s` are epoch seconds, as far as its line tells them.

    Without a day they are seconds of 2000-01-01, without a year those of the year 2000 or the given one.
    """

    time_s: float
    has_year: bool = True
    has_day: bool = True
    has_zone: bool = False


def parse_time(line: bytes, year: int | None = None) -> float | None:
    """The epoch seconds at which this line was written; None where it does not tell the day.

    A stamp without a year counts as one of `year`, and without that too as none.

    >>> parse_time(b"[2024-01-31 12:00:00,500] [INFO] step 3")
    1706702400.5
    """
    stamp = parse_stamp(line, year)
    if stamp is None or not (stamp.has_day and (stamp.has_year or year)):
        return None
    return stamp.time_s


def parse_stamp(line: bytes, year: int | None = None) -> Stamp | None:
    """The time stamp of a line, complete or not; `year` stands in for one that it lacks."""
    if b":" not in line:
        return None
    if (b'"' in line or b":::ML" in line) and (found := _EPOCH.search(line, 0, _OBJECT)):
        if number := found["epoch"] or found["mlperf"]:
            value = float(number)
            return Stamp(value / 1000 if value > 1e11 else value, has_zone=True)
        return _parse_at(line, found.end(), year)
    for clock in islice(_CLOCK.finditer(line, 0, _HEAD), _CLOCKS):
        if stamp := _stamp_at(line, clock, year):
            return stamp
    late = _LATE.search(line, _HEAD - _DATE_SIZE, _OBJECT)
    return _parse_at(line, late.end(), year) if late else None


def _parse_at(line: bytes, at: int, year: int | None) -> Stamp | None:
    clock = _CLOCK.search(line, at, at + _DATE_SIZE + 16)
    return _stamp_at(line, clock, year) if clock else None


def _stamp_at(line: bytes, clock: re.Match[bytes], year: int | None) -> Stamp | None:
    """The stamp whose time of day this is; None where it is a duration."""
    hour, minute, second, part = clock.groups()
    clock_s: float = int(hour) * 3600 + int(minute) * 60 + int(second)
    if clock_s >= _DAY_S:
        return None
    if part:
        clock_s += float(b"0." + part)
    if (half := _HALF.match(line, clock.end())) and 1 <= int(hour) <= 12:
        clock_s += (int(hour) % 12 + (12 if half[1] == b"P" else 0) - int(hour)) * 3600
    at = clock.start()
    found = _DATE.search(line, max(0, at - _DATE_SIZE), at)
    if found is None:
        is_alone = _ALONE.search(line, max(0, at - _DATE_SIZE), at) and _AFTER.match(line, clock.end())
        return Stamp(_days(_GUESSED_YEAR, 1, 1) * _DAY_S + clock_s, False, False) if is_alone else None
    said = found.groupdict()
    own_year = said["year"] or said["year_us"] or said["year_glog"]
    month = said["month"] or said["month_us"] or said["month_glog"] or said["month_mm"]
    day = said["day"] or said["day_us"] or said["day_glog"] or said["day_mm"] or said["day_name"]
    if name := said["name"]:
        month = b"%d" % (1 + _MONTHS.index(name.lower()) // 4)
        after = _YEAR_AFTER.match(line, clock.end())
        own_year = after[1] if after else None
    try:
        days = _days(int(own_year or year or _GUESSED_YEAR), int(month), int(day))
    except ValueError:
        return None
    zone = _ZONE.match(line, clock.end())
    return Stamp(days * _DAY_S + clock_s - _ahead_s(zone), own_year is not None, True, zone is not None)


def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch.

    Raises:
        ValueError: there is no such day.
    """
    return date(year, month, day).toordinal() - _EPOCH_DAY


def _ahead_s(zone: re.Match[bytes] | None) -> int:
    if zone is None or zone["utc"]:
        return 0
    said = zone["zone"]
    return (-1 if said[:1] == b"-" else 1) * (int(said[1:3]) * 3600 + int(said[-2:]) * 60)


_YEAR_S = 366 * _DAY_S
_BACK_S = 3_600
"""How far a clock without a day may go back (writers that lag, summer time) before it is the next day."""
_ZONE_S = 900
"""Zones differ by multiples of this."""


@dataclass(slots=True)
class LineClock:
    """The times of a log's lines on one scale, whatever forms of stamps take turns in it.

    A stamp without a year or a day gets the one that follows the newest stamp. Where stamps of two zones,
    or guessed and full dates, take turns, all are told on the scale of those that came first: differences
    are right, even where no day is known.
    """

    year: int | None = None
    _newest_s: float | None = None
    _local_s: float | None = None
    _full: bool = False
    _days_s: float = 0.0
    _shift_s: dict[bool, float] = field(default_factory=dict)

    def read(self, line: bytes) -> float | None:
        """The time of this line in seconds; None where it tells none."""
        stamp = parse_stamp(line, self._year())
        if stamp is None:
            return None
        own_s = stamp.time_s if stamp.has_zone else self._complete(stamp, line)
        shift_s = self._shift_s.get(stamp.has_zone)
        if shift_s is None:
            ahead_s = 0.0 if self._newest_s is None else own_s - self._newest_s
            shift_s = self._shift_s[stamp.has_zone] = round(ahead_s / _ZONE_S) * _ZONE_S
        self._newest_s = own_s - shift_s
        return self._newest_s

    def _year(self) -> int | None:
        if self._local_s is None:
            return self.year
        return datetime.fromtimestamp(self._local_s, timezone.utc).year

    def _complete(self, stamp: Stamp, line: bytes) -> float:
        """The time of a stamp without a zone, after the one before it."""
        time_s, last_s = stamp.time_s, self._local_s
        oldest_s = None if self._newest_s is None else self._newest_s - _DAY_S / 2
        if last_s is not None:
            oldest_s = last_s - _BACK_S
        if not stamp.has_day and oldest_s is not None:
            time_s += -(-(oldest_s - time_s) // _DAY_S) * _DAY_S
        elif not stamp.has_year and last_s is not None and time_s < last_s - _YEAR_S / 2:
            later = parse_stamp(line, (self._year() or _GUESSED_YEAR) + 1)
            time_s = time_s if later is None else later.time_s
        elif stamp.has_year:
            if last_s is not None and not self._full:
                self._days_s = round((time_s - last_s) / _DAY_S) * _DAY_S
            self._full = True
            time_s -= self._days_s
        self._local_s = time_s
        return time_s
