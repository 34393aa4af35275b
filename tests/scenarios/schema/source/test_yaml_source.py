"""Plain data out of YAML, and where each key and value of it stands."""

import gzip
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scenarios.schema.source import yaml_source
from scenarios.schema.source.yaml_source import Mark, describe, parse_mapping, parse_yaml, read_yaml
from simulator.errors import InputError
from tests.examples import examples


@pytest.fixture(params=["libyaml", "python"])
def _parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers: their messages and counts differ in places."""
    if request.param == "python":
        monkeypatch.setattr(yaml_source, "_LOADER", yaml.SafeLoader)


both_parsers = pytest.mark.usefixtures("_parser")


def parse_error(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_mapping(text, "f.yaml")
    return caught.value


def value_of(scalar: str) -> object:
    data = parse_yaml(f"key: {scalar}", "f.yaml").data
    assert isinstance(data, dict)
    return data["key"]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("2.0e-5", 2e-5),
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("-1e+3", -1e3),
        (".5", 0.5),
        ("5.", 5.0),
        (".inf", float("inf")),
        ("-.inf", float("-inf")),
        ("12", 12),
        ("+4", 4),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000", 1000),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("2023-11-16", "2023-11-16"),
        ("1e", "1e"),
        ("1__0", "1__0"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("''", ""),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("! 5", "5"),
        ("./p.py:Mine", "./p.py:Mine"),
    ],
)
def test_scalars_follow_yaml_1_2(scalar: str, value: object) -> None:
    found = value_of(scalar)
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_float() -> None:
    found = value_of(".nan")
    assert isinstance(found, float)
    assert found != found


@both_parsers
def test_every_key_and_value_knows_its_place() -> None:
    text = "a: 1\nlong: {x: é, y: [10,\n  20]}\nlist:\n  - name: b\n    0.5: 7\n"
    source = parse_mapping(text, "f.yaml")
    assert source.data == {"a": 1, "long": {"x": "é", "y": [10, 20]}, "list": [{"name": "b", 0.5: 7}]}
    assert source.keys == {
        ("a",): Mark(1, 1),
        ("long",): Mark(2, 1),
        ("long", "x"): Mark(2, 8),
        ("long", "y"): Mark(2, 14),
        ("list",): Mark(4, 1),
        ("list", "0", "name"): Mark(5, 5),
        ("list", "0", "0.5"): Mark(6, 5),
    }
    assert source.values[()] == Mark(1, 1)
    assert source.values["long", "y", "1"] == Mark(3, 3)
    assert source.values["list", "0"] == Mark(5, 5)
    assert source.values["list", "0", "0.5"] == Mark(6, 10)


@both_parsers
def test_anchors_and_merge_keys() -> None:
    text = "base: &base {rate: 1, cv: 2}\none: *base\ntwo: {<<: *base, cv: 3}\nthree:\n  <<: [{rate: 9}, *base]\n"
    source = parse_mapping(text, "f.yaml")
    assert source.data == {
        "base": {"rate": 1, "cv": 2},
        "one": {"rate": 1, "cv": 2},
        "two": {"cv": 3, "rate": 1},
        "three": {"rate": 9, "cv": 2},
    }
    assert source.keys["two", "cv"] == Mark(3, 18)
    assert source.keys["two", "rate"] == source.keys["base", "rate"] == Mark(1, 14)


def test_an_alias_is_a_copy() -> None:
    data = parse_mapping("a: &x {k: 1}\nb: *x\n", "f.yaml").data
    assert isinstance(data, dict)
    assert data["a"] == data["b"]
    assert data["a"] is not data["b"]


def test_a_quoted_merge_key_is_a_key() -> None:
    assert parse_mapping("'<<': 1", "f.yaml").data == {"<<": 1}


@both_parsers
@pytest.mark.parametrize(
    ("text", "line", "column", "parts"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, ["duplicate key `a`", "first given at 1:1"]),
        ("a: {b: 1, 'b': 2}", 1, 11, ["duplicate key `b`", "1:5"]),
        ("q: {0.5: 1, 5e-1: 2}", 1, 13, ["duplicate key `0.5`"]),
        ("q: {1: 1, 1.0: 2}", 1, 11, ["duplicate key"]),
        ("a:\n\tb: 1\n", 2, 1, ["tab", "spaces"]),
        ("a: 1\n b: 2\n", 2, 3, ["not YAML", "indented too far"]),
        ("a: [1, 2\nb: 3\n", 2, 2, ["not YAML"]),
        ("a: 'x\n", 2, 1, ["not YAML", "begun at 1:4"]),
        ("a: @x\n", 1, 4, ["not YAML", "cannot start any token"]),
        ("é: é\x01", 1, 5, ["U+0001"]),
        ("a: 1\nb: \ud800", 2, 4, ["U+D800"]),
        ("a: 1\n---\nb: 2\n", 2, 1, ["second document"]),
        ("- 1\n- 2\n", 1, 1, ["expected a mapping", "a list"]),
        ("\n\njust text", 3, 1, ["expected a mapping", "just text"]),
        ("a: &x [*x]", 1, 8, ["stands inside of what it names"]),
        ("a: *nobody", 1, 4, ["&nobody"]),
        ("a: !!python/object:os.system {}", 1, 4, ["tag", "not allowed"]),
        ("a: !mine 5", 1, 4, ["tag !mine"]),
        ("a: !!int abc", 1, 4, ["'abc'", "!!int"]),
        ("a: !!int [1]", 1, 4, ["does not fit"]),
        ("? [1, 2]\n: 3", 1, 3, ["a key must be text or a number"]),
        (".nan: 3", 1, 1, ["a key must be text or a number"]),
        ("<<: 5\na: 1", 1, 5, ["`<<` merges"]),
        ("a: " + "[" * 5000, 1, 104, ["nested more than 100"]),
        ("- " * 5000, 1, 203, ["nested more than 100"]),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(text: str, line: int, column: int, parts: list[str]) -> None:
    error = parse_error(text)
    assert (error.file, error.line, error.column) == ("f.yaml", line, column)
    for part in parts:
        assert part in str(error)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file_says_so(text: str) -> None:
    assert "empty" in str(parse_error(text))


def test_aliases_cannot_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_source, "MAX_NODES", 1000)
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "more than 1,000 values" in str(parse_error("\n".join(lines)))


def test_merges_cannot_explode() -> None:
    lines = ["m0: &m0 {a: 1}"] + [f"m{i}: &m{i} {{<<: *m{i - 1}}}" for i in range(1, 150)]
    assert "merged too often" in str(parse_error("\n".join(lines)))


def test_reading_a_file_takes_a_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: {c: 2}\r\n")
    source = read_yaml(path)
    assert source.data == {"a": 1, "b": {"c": 2}}
    assert source.keys["b", "c"] == Mark(2, 5)
    assert source.file == str(path)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (gzip.compress(b"arrival_time_s,input_tokens\n", mtime=0), ["gzip", "workload: {trace: {path"]),
        (b"a: 1\nb: \xff\n", [":2:4", "not UTF-8", "0xff"]),
        (b"\x7fELF\x00\x00\xff", ["not UTF-8", "binary"]),
        ("a: 1\n".encode("utf-16"), ["not UTF-8"]),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    for part in [str(path), *parts]:
        assert part in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        read_yaml(tmp_path)
    (tmp_path / "scenario.yaml").write_text("a: 1\n")
    with pytest.raises(InputError, match=r"did you mean .*scenario\.yaml"):
        read_yaml(tmp_path)
    monkeypatch.setattr(yaml_source, "MAX_BYTES", 3)
    with pytest.raises(InputError, match="larger than"):
        read_yaml(tmp_path / "scenario.yaml")


def test_describe_is_short() -> None:
    assert describe("x" * 1000) == f"the text {'x' * 37!r}..."
    values: list[object] = [None, True, 3, 0.5, {}, []]
    assert [describe(value) for value in values] == ["nothing (null)", "true", "3", "0.5", "a mapping", "a list"]


_text = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp")), max_size=20)
_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text
_data = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4))


@examples(150, deadline=None)
@given(_data)
def test_json_is_yaml(data: object) -> None:
    assert parse_yaml(json.dumps(data, ensure_ascii=False), "f.json").data == data


@examples(300, deadline=None)
@given(st.text(st.sampled_from("ab1:-[]{}&*!|>'\"%@`#,? \n\t\x00\ud800é"), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    line = None
    try:
        parse_yaml(text, "f.yaml")
    except InputError as error:
        line = error.line
    assert line is None or 1 <= line <= text.count("\n") + 2
