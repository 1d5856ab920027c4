"""Merge the options of one step or role into those common to all steps or roles of a file. Pure functions. A Mapping,
Sequence or Scalar is a node of the YAML tree.
"""

from launcher.spec.tree import Entry, Mapping, Scalar

_ENTRIES = ("script", "module", "command")  # of `run`: who names one takes none of the others over


def merged(common: Mapping, own: Mapping) -> Mapping:
    """Return `common` with the options of `own` on top.

    Mappings are merged, other values replaced, and `null` removes a common option. A script, module or command in `own`
    replaces whichever of the three `common` has.
    """
    own_run, run = own.find("run"), common.find("run")
    if own_run is not None and run is not None and _names_an_entry(own_run) and isinstance(run.value, Mapping):
        kept = {key: entry for key, entry in run.value.entries.items() if key not in _ENTRIES}
        common = Mapping({**common.entries, "run": Entry(run.key, Mapping(kept, run.value.mark))}, common.mark)
    return _merged(common, own)


def _names_an_entry(run: Entry) -> bool:
    """Return whether `run` names a script, module or command."""
    return isinstance(run.value, Mapping) and any(key in run.value.entries for key in _ENTRIES)


def _merged(common: Mapping, own: Mapping) -> Mapping:
    """Return `common` with the entries of `own` on top; mappings in both are merged in the same way."""
    entries = dict(common.entries)
    for key, entry in own.entries.items():
        there = entries.get(key)
        if there is not None and isinstance(entry.value, Scalar) and entry.value.is_null:
            del entries[key]
        elif there is not None and isinstance(there.value, Mapping) and isinstance(entry.value, Mapping):
            entries[key] = Entry(entry.key, _merged(there.value, entry.value))
        else:
            entries[key] = entry
    return Mapping(entries, own.mark)
