"""PNG plots of the benchmarks."""

import sys

from matplotlib.image import imread

from app.lab.bench.plots import Panel, Series, draw


def test_each_panel_shows_its_lines(tmp_path):
    series = [
        Series("tenora", [1, 8, 200], [9, 8, 7], [8, 7, 6], [10, 9, 8]),
        Series("vllm", [1, 8], [9, 5]),
    ]
    path = tmp_path / "new" / "plot.png"
    draw(path, "A plot", [Panel("p", "adapters", "requests/s", series, log_x=True, marks=[4.0])])
    one = imread(path)
    # Blue and orange are the colours of the two servers (RGB of Okabe and Ito).
    assert all(_has(one, colour) for colour in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)))

    panels = [Panel("p", "x", label, series, log_y=True) for label in ("a", "a", "b")]
    draw(path, "Three panels in two rows", panels)
    assert imread(path).shape[0] > 1.5 * one.shape[0]
    assert imread(path).shape[1] > 1.5 * one.shape[1]


def test_without_matplotlib_the_figures_stay(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "plot.png"
    draw(path, "A plot", [Panel("p", "x", "y", [Series("tenora", [1], [1], [1], [1])])])
    assert not path.exists()
    assert "plot.png is not drawn, because matplotlib is not installed." in caplog.text


def _has(image, colour) -> bool:
    return bool((abs(image[..., :3] * 255 - colour).max(axis=-1) < 2).any())
