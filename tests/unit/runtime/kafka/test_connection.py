"""Topics that fit each other, and the options of readers."""

import pytest
from pydantic import ValidationError

from consumers.runtime.kafka.connection import KafkaSettings, TopicsUnfitError, require_equal_counts


def test_partition_counts_must_be_equal() -> None:
    assert require_equal_counts({"a": 4, "b": 4}) == 4
    with pytest.raises(TopicsUnfitError, match=r"must be equal, but are a 4, b 6\."):
        require_equal_counts({"a": 4, "b": 6})


def test_topic_names_have_the_clusters_prefix() -> None:
    assert KafkaSettings(topic_prefix="t7f3a.").topic("scores") == "t7f3a.scores"
    with pytest.raises(ValidationError):
        KafkaSettings(topic_prefix="a/b")


@pytest.mark.parametrize("is_embedded", [True, False])
def test_checksums_are_left_unchecked_on_the_embedded_broker_only(*, is_embedded: bool) -> None:
    options = KafkaSettings(is_embedded=is_embedded).reader_options()
    assert options == {"isolation_level": "read_committed", "check_crcs": not is_embedded}
