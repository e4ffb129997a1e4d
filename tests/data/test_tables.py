"""Tables in files: the same table with and without pyarrow, errors that name the line."""

import gzip
import importlib.util
import math
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.data import (
    Table,
    TableWriter,
    as_table,
    iterate_table,
    read_images,
    read_table,
    write_table,
)
from arcsm.errors import InputError

PYARROW = importlib.util.find_spec("pyarrow") is not None
needs_pyarrow = pytest.mark.skipif(not PYARROW, reason="needs pyarrow")
NAN = math.nan
LARGE = '7,"x\n9,y\n"\n' * 100_000  # more than pyarrow parses in one block


@pytest.fixture(params=[pytest.param("pyarrow", marks=needs_pyarrow), "csv module"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with pyarrow, and again as if it were not installed."""
    if request.param == "csv module":
        monkeypatch.setitem(sys.modules, "pyarrow", None)


def save(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def assert_same(one: Table, other: Table) -> None:
    assert one.names == other.names
    for name in one.names:
        assert one[name].dtype == other[name].dtype, name
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def example() -> Table:
    return as_table(
        {
            "whole": [1, -2, 2**62 + 1],
            "real": [0.1, NAN, -1.5e-300],
            "truth": [True, False, True],
            "text": ['a "quoted", one', None, "two\nlines; é"],
        }
    )


# The fields of one column, and what they are.
COLUMNS: dict[str, tuple[list[str], str, list[Any]]] = {
    "whole numbers": (["1", "-2", "007"], "int64", [1, -2, 7]),
    "spaces around": ([" 1", "2 ", "\t3"], "int64", [1, 2, 3]),
    "limits": (["9223372036854775807", "-9223372036854775808"], "int64", [2**63 - 1, -(2**63)]),
    "too large": (["9223372036854775808", "1"], "float64", [2.0**63, 1]),
    "missing among whole": (["1", "", "3"], "float64", [1, NAN, 3]),
    "missing words": (["1", "NA", "NaN", "null", "nan", "NULL", "N/A"], "float64", [1] + [NAN] * 6),
    "real": (["1.5", "2", "-.5e-3", "5.", "+1"], "float64", [1.5, 2, -0.0005, 5, 1]),
    "infinite": (["inf", "-Infinity", "1"], "float64", [math.inf, -math.inf, 1]),
    "nothing": (["NA", "NA"], "float64", [NAN, NAN]),
    "truth": (["true", "False", "TRUE"], "bool", [True, False, True]),
    "missing truth": (["true", "NA", "false"], "float64", [1, NAN, 0]),
    "truth and numbers": (["true", "1"], "object", ["true", "1"]),
    "letters": (["t", "f"], "object", ["t", "f"]),
    "no missing words": (["1", "#N/A", "none"], "object", ["1", "#N/A", "none"]),
    "text": (["a", "NA", " b "], "object", ["a", None, " b "]),
    "numbers and text": (["1", "x", "2.50"], "object", ["1", "x", "2.50"]),
    "dates": (["2020-01-01", "2020-01-02"], "object", ["2020-01-01", "2020-01-02"]),
    "times": (["12:00:00", "13:00:00"], "object", ["12:00:00", "13:00:00"]),
    "moments": (["2020-01-01 10:00:00", ""], "object", ["2020-01-01 10:00:00", None]),
    "hexadecimal": (["0x10", "0x11"], "object", ["0x10", "0x11"]),
    "underscores": (["1_000", "2_000"], "object", ["1_000", "2_000"]),
    "other digits": (["٣", "٤"], "object", ["٣", "٤"]),
    "quoted numbers": (['"1"', '"2"'], "int64", [1, 2]),
    "quoted text": (['"a,b"', '"say ""x"""', '"\n"'], "object", ["a,b", 'say "x"', "\n"]),
    "quote inside": (['5" pipe', "x"], "object", ['5" pipe', "x"]),
}


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", COLUMNS)
def test_types_of_columns(name: str, end: str, tmp_path: Path) -> None:
    fields, kind, values = COLUMNS[name]
    path = save(tmp_path, end.join(["n,x", *(f"7,{field}" for field in fields), ""]))
    table = read_table(path)
    assert table.names == ("n", "x") and table["n"].tolist() == [7] * len(fields)
    assert table["x"].dtype.name == kind
    np.testing.assert_array_equal(table["x"], np.array(values, dtype=kind))
    assert_same(Table.concat(list(iterate_table(path, chunk_rows=len(fields)))), table)


FORMS: dict[str, tuple[str, bytes]] = {
    "plain": ("t.csv", b"a,b\n1,x\n2,y\n"),
    "no newline at the end": ("t.csv", b"a,b\n1,x\n2,y"),
    "blank lines": ("t.csv", b"\na,b\n\n1,x\n\n\n2,y\n\n"),
    "byte order mark": ("t.csv", b"\xef\xbb\xbfa,b\n1,x\n2,y\n"),
    "mark and quotes": ("t.csv", b'\xef\xbb\xbf"a","b"\n1,x\n2,y\n'),
    "semicolons": ("t.csv", b"a;b\n1;x\n2;y\n"),
    "quoted semicolons": ("t.csv", b'"a";"b"\n1;"x"\n2;"y"\n'),
    "tabs": ("t.tsv", b"a\tb\n1\tx\n2\ty\n"),
    "upper case": ("T.CSV", b"a,b\n1,x\n2,y\n"),
    "tabs in csv": ("t.csv", b"a\tb\n1\tx\n2\ty\n"),
    "blanks around names": ("t.csv", b" a , \tb \n1,x\n2,y\n"),
    "blanks around one name": ("t.csv", b'"a", b\n1,x\n2,y\n'),
    "blanks at the end": ("t.csv", b"a,b\n1,x\n2,y\n \t "),
    "lines of blanks at the end": ("t.csv", b"a,b\r\n1,x\r\n2,y\r\n  \r\n\r\n \r\n"),
    "blanks after returns": ("t.csv", b"a,b\r1,x\r2,y\r  \r"),
    "blanks after quotes": ("t.csv", b'a,b\n1,"x"\n2,"y"\n  \n\n'),
    "blanks in tsv": ("t.tsv", b"a\tb\n1\tx\n2\ty\n  \n"),
    "packed": ("t.csv.gz", gzip.compress(b"a,b\n1,x\n2,y\n")),
    "packed tabs": ("t.tsv.gz", gzip.compress(b"a\tb\n1\tx\n2\ty\n")),
}


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("name", FORMS)
def test_forms_of_text_files(name: str, tmp_path: Path) -> None:
    path = save(tmp_path, FORMS[name][1], FORMS[name][0])
    expected = as_table({"a": [1, 2], "b": ["x", "y"]})
    assert_same(read_table(path), expected)
    assert_same(read_table(str(path), columns=["b"]), expected.select(["b"]))
    chunks = list(iterate_table(path, chunk_rows=1, columns=["b", "a"]))
    assert [chunk.rows for chunk in chunks] == [1, 1]
    assert_same(Table.concat(chunks), expected.select(["b", "a"]))


@pytest.mark.usefixtures("parser")
def test_names_of_several_lines_and_one_name_with_a_semicolon(tmp_path: Path) -> None:
    assert read_table(save(tmp_path, '"a\nb","c;d"\n1,2\n')).names == ("a\nb", "c;d")
    assert read_table(save(tmp_path, '"c;d"\n1\n')).names == ("c;d",)


@pytest.mark.usefixtures("parser")
def test_blanks_that_are_meant(tmp_path: Path) -> None:
    assert read_table(save(tmp_path, '" a ","b"\n1,2\n')).names == (" a ", "b")
    rows = read_table(save(tmp_path, "a\tb\n1\tx\n\t\n", "t.tsv"))  # tabs are fields
    assert rows["b"].tolist() == ["x", None]
    path = save(tmp_path, "a\nx\n \n  \n\ny  \n \n")  # only at the end there is no row
    for table in (read_table(path), Table.concat(list(iterate_table(path, chunk_rows=1)))):
        assert table["a"].tolist() == ["x", " ", "  ", "y  "]
    for one in ({"a\tb": ["x"]}, {" a": [1], "b ": [2]}, {"a": ["x", None, " \t"]}, {"a": [" "]}):
        for name in ("t.csv", "t.tsv"):
            write_table(tmp_path / name, one)
            assert_same(read_table(tmp_path / name), as_table(one))


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("chunk_rows", [None, 1, 2, 1000])
def test_columns_that_are_text_whatever_they_look_like(
    chunk_rows: int | None, tmp_path: Path
) -> None:
    def read(content: str, **options: Any) -> Table:
        path = save(tmp_path, content)
        if chunk_rows is None:
            return read_table(path, **options)
        return Table.concat(list(iterate_table(path, chunk_rows=chunk_rows, **options)))

    content = "flag,code,n,gap\ntrue,01,1,\nTRUE,1.50,2,\nfalse, 2,3,NA\n"
    table = read(content, text=["code", "flag", "gap"])
    assert table["flag"].tolist() == ["true", "TRUE", "false"]
    assert table["code"].tolist() == ["01", "1.50", " 2"]
    assert table["n"].tolist() == [1, 2, 3] and table["n"].dtype == np.int64
    assert table["gap"].dtype == object and table["gap"].tolist() == [None] * 3
    assert read(content, text={"flag"}, columns=["code"])["code"].tolist() == [1, 1.5, 2]
    assert read('a;b\n"1,5";1\n', text=["a"])["a"].tolist() == ["1,5"]
    with pytest.raises(InputError, match=r"'t.csv': .*text columns among .*, got \['z'\]"):
        read(content, text=["z"])
    with pytest.raises(InputError, match=r"write \['flag'\]"):
        read(content, text="flag")


def test_files_with_types_need_no_word_on_text(tmp_path: Path) -> None:
    for name in ("t.npz", *(["t.parquet"] if PYARROW else [])):
        write_table(tmp_path / name, {"a": [1, 2]})
        assert read_table(tmp_path / name, text=["a"])["a"].tolist() == [1, 2]


# The fields of one column between semicolons, and what they are.
COMMAS: dict[str, tuple[list[str], str, list[Any]]] = {
    "commas": (["1,5", "-,25", "+3,", "1,5e-3"], "float64", [1.5, -0.25, 3, 0.0015]),
    "whole among them": (["1,5", "2", " 3 ", "inf"], "float64", [1.5, 2, 3, math.inf]),
    "missing among them": (["", "1,5", "NA"], "float64", [NAN, 1.5, NAN]),
    "quoted": (['"1,5"', '"2,5"'], "float64", [1.5, 2.5]),
    "points": (["1.5", "2"], "float64", [1.5, 2]),
    "points and commas": (["1,5", "2.5"], "object", ["1,5", "2.5"]),
    "both in one": (["1.000,5", "2,5"], "object", ["1.000,5", "2,5"]),
    "two commas": (["1,000,000", "2"], "object", ["1,000,000", "2"]),
    "words": (["1,5", "x"], "object", ["1,5", "x"]),
    "truth": (["1,5", "true"], "object", ["1,5", "true"]),
    "a comma alone": ([",", "1,5"], "object", [",", "1,5"]),
}


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("name", COMMAS)
def test_decimal_commas_between_semicolons(name: str, tmp_path: Path) -> None:
    fields, kind, values = COMMAS[name]
    path = save(tmp_path, "\n".join(["n;x", *(f"7;{field}" for field in fields), ""]))
    table = read_table(path)
    assert table["n"].tolist() == [7] * len(fields) and table["x"].dtype.name == kind
    np.testing.assert_array_equal(table["x"], np.array(values, dtype=kind))
    if kind == "float64":
        assert_same(Table.concat(list(iterate_table(path, chunk_rows=1))), table)


@pytest.mark.usefixtures("parser")
def test_commas_are_no_decimal_signs_in_other_files(tmp_path: Path) -> None:
    assert read_table(save(tmp_path, 'a,b\n"1,5",1\n'))["a"].tolist() == ["1,5"]
    assert read_table(save(tmp_path, "a\tb\n1,5\t1\n", "t.tsv"))["a"].tolist() == ["1,5"]


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["1,5", "2", "2.5"], "numbers with ',' in column 'x', .*got '2.5' in line 4"),
        (["1.5", "2", "2,5"], r"numbers with '\.' in column 'x', .*got '2,5' in line 4"),
        (["1,5", "x"], "a number in column 'x', .*got 'x' in line 3"),
    ],
)
def test_chunks_refuse_another_decimal_sign(
    fields: list[str], message: str, tmp_path: Path
) -> None:
    path = save(tmp_path, "\n".join(["n;x", *(f"7;{field}" for field in fields)]))
    with pytest.raises(InputError, match=message):
        list(iterate_table(path, chunk_rows=1))
    assert read_table(path)["x"].tolist() == fields
    path = save(tmp_path, "n;x\n7;1,5\n7;2\n7;2,5\n7;x\n")
    with pytest.raises(InputError, match=r"a number in column 'x', .*got 'x' in line 5"):
        list(iterate_table(path, chunk_rows=2))


# Content, and what the message must say.
BROKEN: dict[str, tuple[bytes, str]] = {
    "too few fields": (b"a,b,c\n1,2,3\n4,5\n", "expected 3 fields in line 3 of 't.csv', got 2"),
    "too many fields": (b"a,b\n1,2\n\n3,4,5\n", "expected 2 fields in line 4 of 't.csv', got 3"),
    "after a quoted line end": (b'a,b\n1,"x\ny"\n3\n', "expected 2 fields in line 4 .*, got 1"),
    "semicolons": (b"a;b\n1;2\n3\n", "expected 2 fields in line 3 .*, got 1"),
    "short with returns": (b"a,b\r1,2\r3\r", "expected 2 fields in line 3 .*, got 1"),
    "open quote": (b'a,b\n1,2\n3,"x\n4,5\n', "closing quote .* line 3 of 't.csv'"),
    "open quote, last line": (b'a,b\n1,"', "closing quote .* line 2 of"),
    "open quote in the header": (b'"a,b\n1,2\n', "closing quote .* line 1 of"),
    "endless quote": (b'a,b\n1,2\n1,"' + b"x\n" * 70_000, "line 3 .* field limit.*quote missing"),
    "text after a quote": (b'a,b\n1,"x"y\n', "line 2 of 't.csv', got: ',' expected after"),
    "line of blanks": (b"a,b\n1,2\n  \n3,4\n", "expected 2 fields in line 3 .*, got 1"),
    "name twice": (b"a,b,a\n1,2,3\n", r"'t.csv': expected unique column names, got \['a'\]"),
    "name twice but for blanks": (b"a, a\n1,2\n", r"unique column names, got \['a'\]"),
    "name of blanks": (b"a, \n0,1\n", "name for every column in line 1 .* column 2 of 2"),
    "blanks only": (b"a,b\n  \n \n", "rows below the header in 't.csv', got none"),
    "no name": (b",a\n0,1\n", "name for every column in line 1 .* column 1 of 2"),
    "empty": (b"", "a header line and rows in 't.csv', got an empty file"),
    "only line ends": (b"\n\r\n", "got an empty file"),
    "header only": (b"a,b\n\n", "rows below the header in 't.csv', got none"),
    "no header": (b"1,2.5\n3,4\n", "column names in line 1 .*, got the numbers 1, 2.5; add a head"),
    "Latin letters": (b"a,b\n1,x\n2,caf\xe9\n", r"UTF-8 .* 0xe9 at byte 13 \(line 3\)"),
    "Latin header": (b"\xef\xbb\xbfa,\xe9\n1,2\n", r"0xe9 at byte 5 \(line 1\)"),
    "two bytes a letter": ("a,b\n1,2\n".encode("utf-16"), r"0xff at byte 0 \(line 1\)"),
    "zero bytes": (b"a,b\n1,2\n1,\x002\n", r"0x00 at byte 10 \(line 3\)"),
}


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("chunk_rows", [None, 1, 1000])
@pytest.mark.parametrize("name", BROKEN)
def test_errors_name_the_line(name: str, chunk_rows: int | None, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    path = save(tmp_path, content)
    with pytest.raises(InputError, match=message):
        if chunk_rows is None:
            read_table(path)
        else:
            list(iterate_table(path, chunk_rows=chunk_rows))


@pytest.mark.usefixtures("parser")
def test_unknown_columns(tmp_path: Path) -> None:
    path = save(tmp_path, "a,b\n1,2\n")
    with pytest.raises(InputError, match=r"'t.csv': .*among \['a', 'b'\], got \['z'\]"):
        read_table(path, columns=["a", "z"])
    with pytest.raises(InputError, match=r"write \['a'\]"):
        read_table(path, columns="a")


def test_what_is_no_file_of_a_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a file at '.*none.csv', got nothing"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"expected a file at '.*none', got nothing"):
        read_table(tmp_path / "none")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"got the directory '.*folder.csv'"):
        read_table(tmp_path / "folder.csv")
    with pytest.raises(InputError, match=r"ends in one of .csv, .*, got 'table.xlsx'"):
        read_table(save(tmp_path, b"", "table.xlsx"))
    with pytest.raises(InputError, match="ends in one of"):
        write_table(tmp_path / "table", example())
    packed = gzip.compress(b"a,b\n" + random.Random(0).randbytes(1000).hex().encode())
    for broken in (b"a,b\n1,2\n", packed[:-20], packed[:30] + b"\xff" * 30 + packed[60:]):
        with pytest.raises(InputError, match="whole gzip file"):
            read_table(save(tmp_path, broken, "t.csv.gz"))
    for rows in (0, -1, 2.0, True):
        with pytest.raises(InputError, match="chunk_rows to be a positive int"):
            iterate_table(save(tmp_path, "a\n1\n"), chunk_rows=rows)  # type: ignore[arg-type]


@pytest.mark.usefixtures("parser")
def test_chunks_keep_the_type_of_a_column(tmp_path: Path) -> None:
    path = save(tmp_path, "a,b,c,d\n1,true,x,\n2,false,7,5\n3.5,,,6\n4,true,8,7\n")
    chunks = list(iterate_table(path, chunk_rows=1))
    assert [chunk["a"].dtype.name for chunk in chunks] == ["int64", "int64", "float64", "float64"]
    assert [chunk["b"].dtype.name for chunk in chunks] == ["bool", "bool", "float64", "float64"]
    assert [chunk["c"].tolist() for chunk in chunks] == [["x"], ["7"], [None], ["8"]]
    assert [chunk["d"].dtype.name for chunk in chunks] == ["float64"] * 4
    assert_same(Table.concat(chunks), read_table(path))


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,1\n\n2,2\n3,x\n", "a number in column 'b', .*got 'x' in line 5 of 't.csv'"),
        ("a,b\n1,1\n2,2\n3,true\n", "a number in column 'b', .*got 'true' in line 4"),
        ("a,b\n1,true\n2,false\n3,1\n", "a truth value in column 'b', .*got '1' in line 4"),
        ("a,b\n1,true\n2,\n3,\n4,\n5,1\n", "a truth value in column 'b', .*got '1' in line 6"),
        ("a,b\n1,\n2,NA\n3,x\n", "a number in column 'b', .*got 'x' in line 4"),
        ('a,b\n1,1\n2,"2"\n3,"x"\n', "a number in column 'b', .*got 'x' in line 4"),
    ],
)
def test_chunks_refuse_another_kind(content: str, message: str, tmp_path: Path) -> None:
    path = save(tmp_path, content)
    with pytest.raises(InputError, match=message):
        list(iterate_table(path, chunk_rows=2))
    assert read_table(path)["b"].dtype == object  # as a whole it is text
    list(iterate_table(path, chunk_rows=2, columns=["a"]))  # and it need not be read


@pytest.mark.usefixtures("parser")
def test_chunks_go_through_quoted_line_ends(tmp_path: Path) -> None:
    text = [f"{i}" * (i % 3) + "\n" * (i % 2) + "," for i in range(20)]
    write_table(tmp_path / "t.csv", {"n": np.arange(20), "text": text})
    for rows in (1, 3, 20):
        chunks = list(iterate_table(tmp_path / "t.csv", chunk_rows=rows))
        assert [chunk.rows for chunk in chunks[:-1]] == [rows] * ((19) // rows)
        assert Table.concat(chunks)["text"].tolist() == text
    path = save(tmp_path, 'a,b\r1,x\r2,"y\r"\r3,z\r')
    chunks = list(iterate_table(path, chunk_rows=1))
    assert [chunk["b"].tolist() for chunk in chunks] == [["x"], ["y\r"], ["z"]]


@pytest.mark.usefixtures("parser")
def test_quoted_line_ends_in_a_large_file(tmp_path: Path) -> None:
    path = save(tmp_path, "a,b\n" + LARGE)
    table = read_table(path)
    assert table.rows == 100_000
    assert set(table["a"].tolist()) == {7} and set(table["b"].tolist()) == {"x\n9,y\n"}


@needs_pyarrow
def test_both_parsers_agree_on_random_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [token for fields, _, _ in COLUMNS.values() for token in fields]
    tokens += ["1e999", "1e-400", "-0", 'x"y', '""', '"', '"x"y', " ", "+", "1e", "INF", "1,2", ""]
    choose = random.Random(0)

    def outcome(path: Path, rows: int | None) -> list[Table] | str:
        try:
            return (
                [read_table(path)] if rows is None else list(iterate_table(path, chunk_rows=rows))
            )
        except InputError as error:
            return str(error)

    refused = 0
    for _ in range(300):
        pools = [choose.sample(tokens, choose.randint(1, 3)) for _ in range(choose.randint(1, 3))]
        lines = [",".join("abc"[: len(pools)])]
        for _ in range(choose.randint(1, 6)):
            lines.append(",".join(choose.choice(pool) for pool in pools))
        path = save(tmp_path, choose.choice(["\n", "\r\n", "\r"]).join(lines))
        for rows in (None, 1, 2):
            fast = outcome(path, rows)
            with monkeypatch.context() as hidden:
                hidden.setitem(sys.modules, "pyarrow", None)
                slow = outcome(path, rows)
            if isinstance(fast, str) or isinstance(slow, str):
                assert fast == slow, path.read_bytes()
                refused += 1
            else:
                assert len(fast) == len(slow)
                for one, other in zip(fast, slow, strict=True):
                    assert_same(one, other)
    assert 50 < refused < 600


@needs_pyarrow
def test_pyarrow_parses_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Iterator[Table]:
        raise AssertionError("the csv module was used")

    monkeypatch.setattr("arcsm.data.delimited._parse_all", refuse)
    path = save(tmp_path, "a,b\n1,x\n2,y\n")
    assert read_table(path).rows == 2
    assert len(list(iterate_table(path, chunk_rows=1))) == 2
    assert read_table(save(tmp_path, 'a,b\n1,"x"\n2,"y\nz"\n'))["b"].tolist() == ["x", "y\nz"]
    assert read_table(save(tmp_path, "a,b\n" + LARGE)).rows == 100_000
    assert read_table(save(tmp_path, "a;b\n1,5;x\n"))["a"].tolist() == [1.5]


@needs_pyarrow
def test_pyarrow_starts_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that ends while they start is aborted.
    from pyarrow import csv, parquet

    threads = []

    def note(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def noting(*words: Any, **options: Any) -> Any:
            threads.append(getattr(options.get("read_options"), "use_threads", None))
            threads[-1] = options.get("use_threads", threads[-1])
            return plain(*words, **options)

        monkeypatch.setattr(owner, name, noting)

    note(csv, "read_csv")
    note(parquet.ParquetFile, "read")
    note(parquet.ParquetFile, "iter_batches")
    for name in ("t.csv", "t.parquet"):
        write_table(tmp_path / name, example())
        read_table(tmp_path / name)
    list(iterate_table(tmp_path / "t.parquet", chunk_rows=1))
    assert threads == [False] * 3


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "deep/er/t.tsv.gz"])
def test_text_files_bring_numbers_back_exactly(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_table(path, example())
    assert_same(read_table(path), example())
    bits = np.random.default_rng(0).integers(0, 2**63, size=(300, 3), dtype=np.int64)
    x = bits.view(np.float64)
    x = np.where(np.isnan(x), 0.1, x)
    x[:3] = [[5e-324, -0.0, 1.7976931348623157e308], [math.inf, -math.inf, NAN], [1 / 3, 1e22, 0.1]]
    write_table(path, x)
    y = read_table(path).to_numpy()
    there = ~np.isnan(x)
    np.testing.assert_array_equal(y[there].view(np.int64), x[there].view(np.int64))
    assert np.array_equal(np.isnan(y), np.isnan(x))


@pytest.mark.usefixtures("parser")
def test_awkward_text_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table = as_table({"a;b": ["x\ry", "p\r\nq", None, " lead", '"', "a,b", ";"]})
    write_table(path, table)
    assert_same(read_table(path), table)
    for names in (["0", "1"], ["1", "b"], ["a\r", "b"], ["é\n", '"']):
        table = as_table([[1, 0.5], [2, None]], names=names)
        write_table(path, table)
        assert_same(read_table(path), table)
    alone = as_table({"only": [1.5, None, 2.5]})
    write_table(path, alone)
    assert_same(read_table(path), alone)


def test_how_text_files_look(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_table(path, example())
    assert path.read_bytes().decode() == (
        'whole,real,truth,text\n1,0.1,true,"a ""quoted"", one"\n-2,,false,\n'
        '4611686018427387905,-1.5e-300,true,"two\nlines; é"\n'
    )
    write_table(tmp_path / "one.tsv.gz", example())
    first = (tmp_path / "one.tsv.gz").read_bytes()
    write_table(tmp_path / "one.tsv.gz", example())
    assert (tmp_path / "one.tsv.gz").read_bytes() == first
    assert first[4:8] == bytes(4)  # no time of writing


@needs_pyarrow
def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = as_table({**example().columns, "a.b": ["1", "NA", ""], "none": [None, None, None]})
    write_table(path, table)
    assert_same(read_table(path), table)
    assert_same(read_table(path, columns=["text", "a.b"]), table.select(["text", "a.b"]))
    chunks = list(iterate_table(path, chunk_rows=2))
    assert [chunk.rows for chunk in chunks] == [2, 1]
    assert_same(Table.concat(chunks), table)
    with pytest.raises(InputError, match=r"'t.parquet': .*got \['z'\]"):
        read_table(path, columns=["z"])
    with pytest.raises(InputError, match="a parquet file at"):
        read_table(save(tmp_path, b"PAR1 nothing", "bad.parquet"))


@needs_pyarrow
def test_parquet_of_other_makers(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    columns = {
        "i8": pa.array([1, 2, 3], pa.int8()),
        "gaps": pa.array([1, None, 3], pa.int64()),
        "nothing": pa.nulls(3),
        "f2": pa.array(np.array([0.5, 1, 2], dtype="float16")),
        "f4": pa.array([0.5, None, 1.5], pa.float32()),
        "truth": pa.array([True, True, None]),
        "decimal": pa.array([1, 2, 3], pa.int32()).cast(pa.decimal128(20, 2)),
        "words": pa.array(["a", None, "a"]).dictionary_encode(),
        "large": pa.array(["a", None, "b"], pa.large_string()),
    }
    parquet.write_table(pa.table(columns), path)
    table = read_table(path)
    kinds = {name: column.dtype.name for name, column in table.columns.items()}
    floats = dict.fromkeys(["gaps", "nothing", "f2", "f4", "truth", "decimal"], "float64")
    assert kinds == {"i8": "int64", **floats, "words": "object", "large": "object"}
    np.testing.assert_array_equal(table["truth"], [1, 1, NAN])
    assert table["words"].tolist() == ["a", None, "a"]
    chunks = list(iterate_table(path, chunk_rows=1))
    assert [chunk["gaps"].dtype.name for chunk in chunks] == ["int64", "float64", "float64"]
    assert_same(Table.concat(chunks), table)

    for bad, message in [
        (pa.array([2**63], pa.uint64()), "within 64 bits"),
        (pa.array([0], pa.date32()), "'c' of real numbers.*got date32"),
        (pa.array([[1]]), "'c' of real numbers.*got list"),
    ]:
        parquet.write_table(pa.table({"c": bad, "d": [1]}), path)
        with pytest.raises(InputError, match=message):
            read_table(path)
        assert read_table(path, columns=["d"])["d"].tolist() == [1]
    parquet.write_table(pa.table({"c": pa.array([], pa.int64())}), path)
    with pytest.raises(InputError, match=r"rows in 't.parquet', got none"):
        read_table(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'arcsm\[tables\]'"):
        write_table(tmp_path / "t.parquet", example())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"pip install 'arcsm\[tables\]'"):
        read_table(save(tmp_path, b"", "t.parquet"))


def test_npy(tmp_path: Path) -> None:
    path = tmp_path / "t.npy"
    for dtype, kind in [("float32", "float64"), ("uint8", "int64"), ("bool", "bool")]:
        x = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
        np.save(path, x)
        table = read_table(path)
        assert table.names == ("x0", "x1") and table["x1"].dtype.name == kind
        assert read_table(path, columns=["x1"]).names == ("x1",)
        chunks = list(iterate_table(path, chunk_rows=2))
        assert [chunk.rows for chunk in chunks] == [2, 1]
        assert_same(Table.concat(chunks), table)
        np.testing.assert_array_equal(table.to_numpy(), x)
    write_table(path, [[2**62 + 1, 1]])
    assert read_table(path)["x0"].tolist() == [2**62 + 1]
    write_table(path, {"a": [1], "b": [0.5]})
    np.testing.assert_array_equal(np.load(path), [[1, 0.5]])
    with pytest.raises(InputError, match="text in column 'text'"):
        write_table(path, example())
    np.testing.assert_array_equal(np.load(path), [[1, 0.5]])  # still the old one


def test_archives_of_a_version_to_come_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, X=np.zeros((3, 2)))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 109  # the version needed, in the directory
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"zip file version 10\.9; save it again"):
        read_table(path)
    archive = tmp_path / "pictures.zip"
    archive.write_bytes(content)
    with pytest.raises(InputError, match=r"zip file version 10\.9; correct the path"):
        read_images(archive)


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    x = np.arange(6.0).reshape(3, 2)
    for arrays in ({"X": x, "y": np.ones(3)}, {"rows": x}):
        np.savez(path, **arrays)
        np.testing.assert_array_equal(read_table(path).to_numpy(), x)
    table = as_table(
        {"file": [1, 2], "X": [0.5, NAN], "allow_pickle": [True, False], "t": ["é", None]}
    )
    write_table(path, table)
    assert_same(read_table(path), table)
    assert [chunk["file"].tolist() for chunk in iterate_table(path, chunk_rows=1)] == [[1], [2]]
    for arrays in ({"a": x, "b": x}, {"a": np.ones(2), "b": np.ones(3)}, {}):
        np.savez(path, **arrays)
        with pytest.raises(InputError, match=r"an array X, .*got the shapes \{") as caught:
            read_table(path)
        assert all(repr(name) in str(caught.value) for name in arrays)


def test_no_pickle_is_ever_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))  # type: ignore[return-value]

    trap = np.array([[Trap()]], dtype=object)
    np.save(tmp_path / "t.npy", trap)
    np.savez(tmp_path / "t.npz", X=trap)
    (tmp_path / "bare.npy").write_bytes((tmp_path / "t.npy").read_bytes()[128:])
    (tmp_path / "bare.npz").write_bytes((tmp_path / "t.npy").read_bytes()[128:])
    for name in ("t.npy", "t.npz"):
        with pytest.raises(InputError, match=r"Python objects \(a pickle\)"):
            read_table(tmp_path / name)
    for name in ("t.npy", "bare.npy", "bare.npz"):
        with pytest.raises(InputError, match=f"'{name}'"):
            list(iterate_table(tmp_path / name))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(3), r"got shape \(3,\)"),
        (np.array(1), r"got shape \(\)"),
        (np.ones((0, 2)), "rows"),
    ],
)
def test_arrays_that_are_no_table(array: np.ndarray, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(InputError, match=message):
        read_table(tmp_path / "t.npy")
    with pytest.raises(InputError, match=r"'t.npy'"):
        list(iterate_table(tmp_path / "t.npy"))


@pytest.mark.parametrize(
    "name", ["t.csv", "t.tsv.gz", pytest.param("t.parquet", marks=needs_pyarrow)]
)
def test_a_file_in_chunks_appears_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    table = as_table({**example().columns, "gap": [1.5, 2, NAN]})
    with TableWriter(path) as writer:
        for row in range(3):
            writer.append(table.take([row]))
            assert not path.exists()
    assert_same(read_table(path), table)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="stop"), TableWriter(path) as writer:
        writer.append(table)
        raise RuntimeError("stop")
    message = r"the columns \['whole', .*got \['other'\]"
    with pytest.raises(InputError, match=message), TableWriter(path) as writer:
        writer.append(table)
        writer.append({"other": [1]})
    with pytest.raises(InputError, match="at least one table"), TableWriter(path):
        pass
    with pytest.raises(InputError, match="inside of its `with` block"):
        writer.append(table)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@needs_pyarrow
def test_types_of_chunks_in_parquet(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t.parquet") as writer:
        writer.append({"a": [0.5]})
        writer.append({"a": [1]})
    assert read_table(tmp_path / "t.parquet")["a"].tolist() == [0.5, 1.0]
    path = tmp_path / "u.parquet"
    for first, later in [(1, [0.5]), (1, ["x"]), (1, [True]), (0.5, ["x"]), ("x", [1])]:
        message = "'a' as .*, as in the first chunk"
        with pytest.raises(InputError, match=message), TableWriter(path) as writer:
            writer.append({"a": [first]})
            writer.append({"a": later})
        assert not path.exists()


def test_writers_of_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"to write in chunks, got 't.npy'"):
        TableWriter(tmp_path / "t.npy")


def test_memory_of_chunks_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # whose memory is not traced
    path = save(tmp_path, "a,b\n" + "123,0.25\n" * 20_000)
    np.save(tmp_path / "t.npy", np.ones((50_000, 4), dtype="float32"))
    for file, limit in ((path, 150_000), (tmp_path / "t.npy", 150_000)):
        tracemalloc.start()
        try:
            rows = sum(chunk.rows for chunk in iterate_table(file, chunk_rows=100))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert rows in (20_000, 50_000)
        assert peak < limit


def test_a_row_group_is_not_read_as_a_whole(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x = np.random.default_rng(0).normal(size=1_000_000)
    parquet.write_table(arrow.table({"x": x, "y": -x}), tmp_path / "t.parquet")
    pool = arrow.default_memory_pool()
    before, held = pool.bytes_allocated(), []
    for place, part in enumerate(iterate_table(tmp_path / "t.parquet", chunk_rows=10_000)):
        np.testing.assert_array_equal(part["x"], x[place * 10_000 : (place + 1) * 10_000])
        held.append(pool.bytes_allocated() - before)
    # 16 MB are in the file, in one row group; its pages of a column are 1 MB each.
    assert place == 99 and max(held) < 8_000_000
