"""SVGD of a NumPyro model comes near NUTS by the bandwidth that KSD prefers, and the median's underestimates."""

import matplotlib.pyplot as plt


def test_svgd_of_eight_schools_comes_near_nuts(as_it_comes, tmp_path, monkeypatch, capsys):
    import svgd_numpyro

    monkeypatch.setattr(svgd_numpyro, "TAUS", (0.1, "median"))
    found, best, nuts = svgd_numpyro.main(particles=200, steps=300, samples=300, picture=tmp_path / "schools.png")
    assert best == 0.1 and found[0.1][1] < found["median"][1] / 3
    assert found["median"][0] > 0.2  # a narrower kernel
    (shift, ratio), (of_median, ratio_of_median) = (svgd_numpyro.compared(found[x][2], nuts) for x in found)
    assert shift.max() < 0.2 < of_median.max() and abs(ratio - 1).max() < 0.2 < 1 - ratio_of_median.min()
    output = capsys.readouterr().out
    assert "least KSD²: τ = 0.1" in output and output.count(" sd   ") == 2
    assert (tmp_path / "schools.png").stat().st_size > 10_000
    axes = plt.gcf().axes
    assert len(axes) == 5 and all(ax.get_ylabel() for ax in axes)
    assert [len(ax.collections[0].get_offsets()) for ax in axes[1:3]] == [200, 200]  # as many of NUTS
