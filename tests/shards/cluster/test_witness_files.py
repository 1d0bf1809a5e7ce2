from penstock.shards.cluster.ray_runner import MAX_WITNESSES, WitnessFile, make_witness_files


def test_a_file_with_other_bytes_or_another_size_is_not_the_same(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"a" * 10_000)
    witness = WitnessFile.of(str(path))
    assert witness.is_same_here()
    path.write_bytes(b"b" + b"a" * 9_999)
    assert not witness.is_same_here()
    path.write_bytes(b"a" * 10_001)
    assert not witness.is_same_here()
    path.unlink()
    assert not witness.is_same_here()


def test_only_the_beginning_of_a_file_is_read(tmp_path):
    path = tmp_path / "sparse.tar"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # reading it as a whole would take many minutes
    assert WitnessFile.of(str(path)).is_same_here()


def test_there_is_one_readable_file_of_each_local_folder(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name in ("1", "2"):
            (tmp_path / folder / name).write_bytes(b"x")
    paths = [str(tmp_path / name) for name in ("a/gone", "a/1", "a/2", "b/2", "b/1")]
    witnesses = make_witness_files([*paths, "s3://bucket/c/1", str(tmp_path / "a")])
    assert [witness.path for witness in witnesses] == [paths[1], paths[3]]


def test_the_number_of_witness_files_is_limited(tmp_path):
    paths = [tmp_path / str(number) / "x" for number in range(MAX_WITNESSES + 5)]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(b"x")
    assert len(make_witness_files(map(str, paths))) == MAX_WITNESSES
