"""Machines that the tests make up."""

from dataflow.system import machine


def set_groups(monkeypatch, mounted, *lines):
    """Let the control groups be mounted in a folder, and those of this process be named by `lines`; no file if none."""
    own = mounted.parent / f"{mounted.name} own"
    if lines:
        own.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(machine, "_MOUNTED", mounted)
    monkeypatch.setattr(machine, "_OWN", own)
