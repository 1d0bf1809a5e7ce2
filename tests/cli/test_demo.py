def test_demo_runs_the_whole_way_and_prints_the_comparison(penstock, tmp_path):
    ran = penstock("demo", "--samples", "4")
    assert ran.code == 0, ran.err
    assert "4 samples decoded on all cores, 0 flaws" in ran.out
    assert "decode the arrays" in ran.out
    assert (tmp_path / "demo" / "packed" / "manifest.json").exists()
    again = penstock("demo", "--samples", "2")
    assert again.code == 0, again.err


def test_demo_never_clears_a_folder_it_did_not_make(penstock, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    ran = penstock("demo", "--folder", "mine")
    assert ran.code == 2
    assert (tmp_path / "mine" / "thesis.txt").exists()
