"""An event is read in few places, so that a person can follow it: ten files at most."""

from statistics import median

from tests.benchmarks.event_trip import trips

MOST_FILES = 10
MOST_STAYS = 25


def test_an_event_enters_few_files_and_seldom_comes_back() -> None:
    files, stays = trips()
    assert median(files) <= MOST_FILES
    assert median(stays) <= MOST_STAYS
