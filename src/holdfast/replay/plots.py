"""Draw plots of recall and cost against the budget, with one line for each strategy.

Only this module imports matplotlib, which the extra `plot` installs. The same results always give the same file, byte for byte, even if the
user has changed the settings of matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import MissingExtra
from holdfast.replay.player import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS: Final = "osD^vP*X<>"
_LEGEND: Final = 112
"""Maximum number of characters in a line of the legend."""
_SETTINGS: Final[dict[str, Any]] = {
    "svg.hashsalt": "holdfast",  # ids inside the file
    "svg.fonttype": "none",
    "text.parse_math": False,  # a `$` in a name is a `$`
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_NO_DATE: Final[dict[str, dict[str, Any]]] = {"svg": {"Date": None}, "png": {"Software": None}}


def require() -> None:
    """Check that matplotlib is installed.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as exc:
        raise MissingExtra("a plot", "plot") from exc


def draw_plot(results: Sequence[Result], form: str) -> bytes:
    """Return the plot as the contents of a file.

    Args:
        results: Results to plot.
        form: Format of the file: `svg` or `png`.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require()
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", _SETTINGS]):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        recall, cost = figure.subplots(1, 2)
        _plot_lines(recall, results, _get_recall)
        recall.set(title="argument recall", ylabel="values still in the prompt, %", ylim=(0, 103))
        _plot_lines(cost, results, _get_cost)
        cost.set(title="cost", ylabel="input tokens a call")
        cost.set_ylim(bottom=0)
        handles, names = recall.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=_count_columns(names), frameon=False)
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=144, metadata=_NO_DATE[form])
    return file.getvalue()


def _count_columns(names: Sequence[str]) -> int:
    """Return the number of names in a line of the legend, from 1 to 5. Long names give a small number."""
    return max(1, min(5, _LEGEND // (max(map(len, names), default=0) + 6)))


def _get_recall(result: Result) -> float | None:
    return None if result.recall is None else result.recall * 100


def _get_cost(result: Result) -> float | None:
    return result.cost_per_call if result.calls > result.refused else None


def _plot_lines(axes: Axes, results: Sequence[Result], figure: Callable[[Result], float | None]) -> None:
    """Plot one line for each strategy. The budget axis is logarithmic, and a missing value leaves a gap in the line."""
    for at, name in enumerate(dict.fromkeys(result.strategy for result in results)):
        mine = sorted((result for result in results if result.strategy == name), key=lambda result: result.budget)
        heights = [float("nan") if (value := figure(result)) is None else value for result in mine]
        axes.plot([result.budget for result in mine], heights, marker=_MARKERS[at % len(_MARKERS)], label=name)
    budgets = sorted({result.budget for result in results})
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
    axes.minorticks_off()
    axes.set_xlabel("budget, tokens")
