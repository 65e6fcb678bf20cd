"""Which Java is taken for Spark, and the shim for one that lacks a module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kalla.errors import NotInstalled
from kalla.local.servers import java
from kalla.local.servers.java import Java


def test_java_is_found_or_missed_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = _fake_java(tmp_path / "old", "11.0.2")
    new = _fake_java(tmp_path / "new", "21.0.1")
    assert java.find({"JAVA_HOME": str(new), "PATH": ""}).version == "21.0.1"
    assert java.find({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).home == new
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    with pytest.raises(NotInstalled, match=r"no Java 17 .*JAVA_HOME is Java 11\.0\.2.*install one"):
        java.find({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(NotInstalled, match="JAVA_HOME is not a Java"):
        java.find({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_a_java_without_the_vector_module_gets_a_shim_that_drops_it(tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "slim", "21.0.1", modules="java.base java.sql")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    found = java.find({"JAVA_HOME": str(home), "PATH": ""})
    shim = found.home_for_spark(tmp_path) / "bin" / "java"
    flags = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    told = subprocess.run([str(shim), *flags], capture_output=True, text=True, check=True)
    assert told.stdout == "<-cp><a b><Main><>"
    complete = Java(home, "21", has_vector=True)
    assert complete.home_for_spark(tmp_path) == home


def _fake_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home
