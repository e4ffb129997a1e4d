"""The plot that says why a row is unusual."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from arcsm.errors import InputError
from arcsm.plots import save_figure, surprise_plot
from arcsm.plots.palette import DATA, SCORE


def test_the_most_surprising_column_is_at_the_top_and_coloured(tmp_path: Path) -> None:
    ax = surprise_plot(
        np.array([-1.0, 8.0, 2.0]), names=["age", "in$come$", "city"], values=[30, 2.5e6, "Bern"]
    )
    assert [bar.get_width() for bar in ax.patches] == [8.0, 2.0, -1.0]
    assert [to_hex(bar.get_facecolor()) for bar in ax.patches] == [SCORE, DATA, DATA]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "in$come$ = 2.5e+06",
        "city = Bern",
        "age = 30",
    ]
    low, high = ax.get_ylim()
    assert low > high  # the first at the top
    save_figure(ax, tmp_path / "why.svg")
    assert "in$come$" in (tmp_path / "why.svg").read_text() or (tmp_path / "why.svg").stat().st_size


def test_a_table_of_one_row_is_that_row() -> None:
    ax = surprise_plot(np.array([[-1.0, 8.0, 2.0]]), names=["age", "income", "city"])
    assert [bar.get_width() for bar in ax.patches] == [8.0, 2.0, -1.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["income", "city", "age"]


def test_the_values_may_be_a_row_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    row = pandas.DataFrame({"age": [30, 40], "income": [1.5, 2.5]}).iloc[1]
    ax = surprise_plot([1.0, 2.0], names=row.index, values=row)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["income = 2.5", "age = 40"]


def test_the_values_may_be_a_table_of_one_row() -> None:
    ax = surprise_plot([1.0, 2.0], names=["a", "b"], values=np.array([[30, 40]]))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b = 40", "a = 30"]
    pandas = pytest.importorskip("pandas")
    new = pandas.DataFrame({"age": [30, 40], "income": [1.5, 2.5], "city": ["Bern", "Chur"]})
    ax = surprise_plot([[1.0, 3.0, 2.0]], names=new.columns, values=new.iloc[[1]])
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "income = 2.5",
        "city = Chur",
        "age = 40",
    ]
    with pytest.raises(InputError, match="values of one row, got 2 rows; pass the row"):
        surprise_plot([1.0, 2.0, 3.0], values=new)


def test_of_many_columns_only_the_first_are_drawn() -> None:
    ax = surprise_plot(np.arange(40.0), most=5)
    assert [bar.get_width() for bar in ax.patches] == [39.0, 38.0, 37.0, 36.0, 35.0]
    assert ax.get_yticklabels()[0].get_text() == "x39"
    assert any("35 more, up to 34.0" in text.get_text() for text in ax.texts)


@pytest.mark.parametrize(
    ("surprise", "options", "message"),
    [
        ([1.0, np.nan], {}, "finite numbers in surprise"),
        ([[1.0, 2.0], [3.0, 4.0]], {}, r"one row, got 2 rows; pass one of them, surprise\[0\]"),
        ([[[1.0, 2.0]]], {}, "1 or 2 dimensions"),
        ([[1.0, 2.0]], {"names": ["a"]}, "names for each of 2 columns"),
        ([1.0, 2.0], {"names": ["a"]}, "names for each of 2 columns"),
        ([1.0, 2.0], {"values": [1]}, "values for each of 2 columns"),
        ([1.0, 2.0], {"values": np.ones((1, 3))}, "values for each of 2 columns, got 3"),
        ([1.0, 2.0], {"values": np.ones((2, 2))}, "values of one row, got 2 rows; pass the row"),
        ([1.0, 2.0], {"most": 0}, "1 or more, got 0; give 15"),
    ],
)
def test_wrong_input(surprise: object, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        surprise_plot(surprise, **options)
