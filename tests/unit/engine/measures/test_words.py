"""One spelling for spoken text, and the errors that are left: each step, and their values in EVA's
encoding.
"""

import pytest

from consumers.engine.measures.words import (
    NO_PAIR,
    CallWordErrors,
    ErrorSums,
    compare,
    differences,
    stt_wer,
)
from consumers.engine.turns.normal_text import MAX_CHARS, normalised, without_bracketed
from tests.support.calls.metric_contexts import context

SPELLINGS = [
    ("accents written as escapes", r"caf\u00e9", "cafe"),
    ("other escapes", r"a\x41\101 b\dc", "aaa b dc"),
    ("an escape that stops short", r"Well, caf\u00e", r"Well, caf\u00e"),
    ("escapes in a text that needs none", "é \\u00e9", "e u 0 e 9"),
    ("half a pair of escapes", r"ok \ud83d yes", "ok yes"),
    ("apostrophes", "It\u2019s I\u00b4m", "it is i am"),
    ("letters one by one", "L A X and S K", "lax and s k"),
    ("letters behind a contraction, as in EVA", "It's S K four", "it ssk 4"),
    ("a spoken dash", "P R V dash S U R", "prv sur"),
    ("a number in groups", "call 919-696-3901", "call 9196963901"),
    ("letters and digits in groups", "WZH-89B", "wzh 89 b"),
    ("words with a hyphen", "wishy-washy", "wishy washy"),
    ("a date", "2026-11-21", "2026 11 21"),
    ("a list of numbers", "nineteen ninety four, zero two, eleven", "1994 2 11"),
    ("a comma in a number", "1,000 dollars", "$1000"),
    ("leading zeros", "zero zero seven", "7"),
    ("an ordinal in two parts", "the 3 rd", "the 3rd"),
    ("British spelling", "my favourite colour", "my favorite color"),
    ("fillers", "Um, I mean, uh, yes", "i mean yes"),
    ("titles", "Dr Smith", "doctor smith"),
    ("percent", "five percent", "5"),
    (
        "an ordinal of one",
        "I need the first flight, the 1st",
        "i need the one st flight the one st",
    ),
    ("a plural of one", "the other ones, the 1s", "the other one s the one s"),
    ("a lone one", "1 of them, number 1", "one of them number one"),
    ("other ordinals", "the twenty second and the zeroth", "the 22nd and the 0th"),
    ("an ordinal that EVA does not know", "the ninth", "the ninth"),
    ("a zero in front of an ordinal", "o second", "2nd"),
    ("an amount behind a number, as EVA reads it", "fifty $20", "$5020"),
    ("an amount in parts", "two dollars and seven cents, $0.25", "$207 \u00a225"),
    ("tens as a plural", "the nineteen eighties", "the 1980 s"),
    ("words that EVA leaves", "kinda cause I dunno", "kinda cause i dunno"),
    ("dots without a blank", "wait..colour", "wait color"),
    ("a half of nothing, as EVA reads it", "And a half", ""),
    ("a half of a number", "two and a half million", "2500000"),
    ("a point without a number, as EVA reads it", "point and go", "and go"),
    ("nothing but marks", "...?!", ""),
    (
        "a number that no rule foresees",
        f"Um, {'9' * 4295}.5 Billion",
        f"Um, {'9' * 4295}.5 Billion",
    ),
]


@pytest.mark.parametrize(
    ("text", "spelling"), [case[1:] for case in SPELLINGS], ids=[case[0] for case in SPELLINGS]
)
def test_spoken_text_has_one_spelling(text: str, spelling: str) -> None:
    assert normalised(text) == spelling


def test_only_so_much_of_a_text_is_read() -> None:
    assert normalised("word " * MAX_CHARS) == ("word " * (MAX_CHARS // 5)).strip()


SPELLINGS_BY_LANGUAGE = [
    (
        "de",
        "Zweihundertf\u00fcnfundvierzig Stra\u00dfen, \u00e4h, um drei.",
        "245 strassen ah um 3",
    ),
    ("de", "Am dritten Mai, hm, Hr. M\u00fcller, 1.234,5 Euro", "am 3 mai herr muller 12345 euro"),
    ("de", "Das einundzwanzigste kennt EVA nicht.", "das einundzwanzigste kennt eva nicht"),
    (
        "es",
        "Bueno, treinta y cinco a la Sra. N\u00fa\u00f1ez, el tercero",
        "35 a la senora nunez el 3 o",
    ),
    (
        "fr",
        "Quatre-vingt-dix-sept euros, euh, \u00e0 Mme No\u00ebl: 1.000",
        "97 euros a madame noel 1000",
    ),
    ("fr", "la premi\u00e8re, soixante et onze, mille deux cents", "la 1 ere 71 1200"),
    ("fr-CA", "mm, 1.000 et 1 000", "1 et 1000"),
    (
        "hi",
        "\u092e\u0941\u091d\u0947 \u0926\u094b \u091f\u093f\u0915\u091f",
        "\u092e\u0941\u091d\u0947 2 \u091f\u093f\u0915\u091f",
    ),
    (
        "ja",
        "\u3048\u30fc\u3068\u3001\u4e09\u767e\u4e8c\u5341\u4e00\u4fbf\u3067\u3059\u3002",
        "321\u4fbf\u3067\u3059",
    ),
    ("zh", "\u55ef\uff0c\u4e00\u4e07\u4e24\u5343\u5757", "12000\u5757"),
    ("zh-TW", "\u4e09\u842c", "30000"),
    (
        "ko",
        "\uc74c, \uc0bc\ubc31\uc774\uc2ed\uc77c \ubc88 \uc2a4\ubb3c\ud558\ub098",
        "321 \ubc88 21",
    ),
    ("en-GB", "one two", "12"),
    ("it", "Due stra\u00dfen, alle tre.", "due stra\u00dfen alle tre"),
]


@pytest.mark.parametrize(("language", "text", "spelling"), SPELLINGS_BY_LANGUAGE)
def test_every_language_has_its_own_rules(language: str, text: str, spelling: str) -> None:
    assert normalised(text, language) == spelling


def test_vowel_signs_stay_where_no_rules_are_known() -> None:
    """In EVA they do not, and a word of Marathi falls into syllables."""
    word = "\u0928\u092e\u0938\u094d\u0924\u0947"
    assert normalised(word, "mr") == word
    assert normalised(word, "mr", as_eva=True) == "\u0928\u092e\u0938 \u0924"


def test_a_region_is_read_like_its_language_except_in_evas_numbers() -> None:
    assert normalised("zwei", "de-AT") == "2"
    assert normalised("zwei", "de-AT", as_eva=True) == "zwei"
    assert compare("\u4e00\u4e8c", "\u4e00\u4e09", "zh-TW").sums == ErrorSums(
        substitutions=1, reference_words=2
    )
    assert compare("\u4e00\u4e8c", "\u4e00\u4e09", "zh-TW", as_eva=True).sums.reference_words == 1


def test_labels_are_no_words() -> None:
    assert without_bracketed("[slow] Yes [a] [b]. ") == "Yes  ."
    assert without_bracketed(" [never closed") == "[never closed"


def test_errors_are_what_changes_the_one_into_the_other() -> None:
    compared = compare("I need one window seat please", "I need a windows seat")
    assert compared.sums == ErrorSums(substitutions=2, deletions=1, insertions=0, reference_words=6)
    assert compared.to_dict() == {
        "substitutions": [{"expected": "one window", "actual": "a windows"}],
        "deletions": ["please"],
        "insertions": [],
    }


def test_languages_without_blanks_are_compared_by_character() -> None:
    assert compare("東京です", "東今です", "ja").sums == ErrorSums(
        substitutions=1, reference_words=4
    )
    errors = CallWordErrors("ja")
    errors.put(1, "東京です", "東今です")
    result = errors.result()
    assert (result.score, result.details["cer"], result.details["use_cer"]) == (0.25, 0.25, True)


def test_a_call_in_evas_encoding() -> None:
    errors = CallWordErrors()
    errors.put(2, "No thanks a lot", "No tanks a lot please")
    errors.put(1, "My code is [pause] seven", "[user interrupts] code is seven")
    assert errors.result().to_dict() == {
        "score": 0.375,
        "normalized_score": 0.625,
        "error": None,
        "skipped": False,
        "sub_metrics": {
            "substitution_rate": 0.125,
            "deletion_rate": 0.125,
            "insertion_rate": 0.125,
        },
        "details": {
            "wer": 0.375,
            "accuracy": 0.625,
            "language": "en",
            "use_cer": False,
            "num_turns": 2,
            "per_turn_wer": {"1": 0.25, "2": 0.5},
            "per_turn_errors": {
                "1": {"substitutions": [], "deletions": ["my"], "insertions": []},
                "2": {
                    "substitutions": [{"expected": "thanks", "actual": "tanks"}],
                    "deletions": [],
                    "insertions": ["please"],
                },
            },
            # of the first turn only
            "error_summary": {
                "top_substitutions": [],
                "top_deletions": [{"word": "my", "count": 1}],
                "top_insertions": [],
            },
            "total_substitutions": 1,
            "total_deletions": 1,
            "total_insertions": 1,
            "reference_words": 8,
        },
    }


def test_accuracy_does_not_fall_below_zero() -> None:
    errors = CallWordErrors()
    errors.put(1, "Yes", "What did you say")
    assert (errors.result().score, errors.result().normalized_score) == (4.0, 0.0)


@pytest.mark.parametrize(
    ("meant", "understood"), [("Hi", "[noise]"), ("", "Hi"), ("[slow]", "[slow]"), (" ", " ")]
)
def test_a_turn_counts_only_if_both_texts_say_something(meant: str, understood: str) -> None:
    result = stt_wer(
        context(intended_user_turns={1: meant}, transcribed_user_turns={1: understood})
    )
    assert (result.score, result.normalized_score, result.error, result.details) == (
        0.0,
        0.0,
        NO_PAIR,
        {},
    )


def test_a_turn_in_which_nothing_is_left_to_compare_counts_its_insertions() -> None:
    """As jiwer does: without a reference word there is nothing to divide by."""
    errors = CallWordErrors()
    errors.put(1, "Um...", "I said so")
    result = errors.result()
    assert (result.score, result.details["reference_words"], result.sub_metrics) == (3.0, 0, {})


def test_turns_are_put_in_replaced_and_taken_out() -> None:
    errors = CallWordErrors()
    assert not errors.put(1, None, "Hi")
    assert errors.put(1, "Hi there", "Hi")
    assert not errors.put(1, "Hi there", "Hi")
    assert errors.put(1, "Hi there", "Hi there")
    assert errors.sums == ErrorSums(reference_words=2)
    assert errors.put(1, "Hi there", "")
    assert not errors.remove(1)
    assert errors.put(2, "Bye", "Buy")
    assert errors.put(2, "Bye", None)
    assert (errors.sums, dict(errors.turns)) == (ErrorSums(), {})


def test_a_whole_call_has_no_turns_but_its_own() -> None:
    errors = CallWordErrors()
    errors.put(1, "Hi there", "Hi")
    errors.put(2, "Bye now", "Bye")
    errors.put_all({2: "Bye now", 3: "So long", 4: "Well"}, {2: "Bye now", 3: "So", 5: "Well"})
    assert (errors.sums, [*errors.turns]) == (ErrorSums(deletions=1, reference_words=4), [2, 3])


def test_two_texts_that_meet_elsewhere_are_another_pair() -> None:
    errors = CallWordErrors()
    errors.put(1, "ab", "c")
    assert errors.put(1, "a", "bc")


def test_spelling_is_no_difference_between_transcripts() -> None:
    assert differences("I'll pay one hundred twenty dollars.", "I will pay $120").errors == ()
    found = differences(
        "Please rebook me on flight seven oh three, colour me surprised",
        "Please book me on flight 703 color me",
    )
    assert found.errors == (("rebook", "book"), ("surprised", ""))
    assert found.sums == ErrorSums(substitutions=1, deletions=1, reference_words=9)
    assert differences("東京です", "東今です", "zh").sums.errors == 1


def test_eva_s_number_for_a_typographic_apostrophe_and_a_saner_one_of_ours() -> None:
    meant, understood = "I don\u2019t know, I\u2019ll wait", "I don't know, I'll wait"
    result = stt_wer(
        context(intended_user_turns={1: meant}, transcribed_user_turns={1: understood})
    )
    assert result.score == 0.429
    assert compare(meant, understood).sums.errors == 0


def test_eva_reads_long_turns_whole() -> None:
    whole = "word " * 1_500
    result = stt_wer(context(intended_user_turns={1: whole}, transcribed_user_turns={1: whole}))
    assert result.details["reference_words"] == 1_500
