"""What all figures share: colours, sizes and how one becomes a PNG. No display, no global state."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from multigrid_rl.judge.runs import CurveError

# Okabe and Ito's palette: told apart with any colour vision; lines differ in style as well.
BLUE, VERMILLION, BLACK = "#0072B2", "#D55E00", "#000000"
SMALL, NORMAL, LARGE = 11, 13, 16  # points
DPI = 120


def save_figure(figure: Figure, path: Path) -> None:
    """Write ``figure`` into a PNG file, in a folder that is made if need be.

    Raises:
        CurveError: it cannot be written.
    """
    # Drawn completely before the file is touched.
    image = BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(image, format="png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image.getvalue())
    except OSError as error:
        raise CurveError(f"{path}: {error.strerror}; allowed is a file that can be written") from error


def thousands(steps: float) -> str:
    """``450k`` or ``1.2M``."""
    return f"{steps / 1e6:g}M" if abs(steps) >= 1e6 else f"{steps / 1e3:g}k" if steps else "0"
