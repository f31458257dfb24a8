"""The actions that operators of a device may take from its page."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.base.problems import Problem
from service.dashboard import addresses, visitors
from service.dashboard.actions import Action
from service.dashboard.facts import DeviceFacts
from service.dashboard.forms import Field, Form, Typed
from service.store.database.models import Device


@dataclass(frozen=True, slots=True)
class Doings:
    """Buttons, and forms that need words."""

    actions: tuple[Action, ...] = ()
    forms: tuple[Form, ...] = ()
    opened: str = ""
    """The form that comes back: its box is open."""

    def refused(self, form_id: str, typed: Typed, problem: Problem) -> Doings:
        """Returns the same with what was typed into that form, and with the reason why it was refused."""
        forms = tuple(form.refused(typed, problem) if form.id == form_id else form for form in self.forms)
        return replace(self, forms=forms, opened=form_id)


NOTHING = Doings()


def doings(device: Device, facts: DeviceFacts) -> Doings:
    """Returns the actions and forms that the device's state and the visitor's rights allow."""
    if not visitors.current().may("operate") or device.state == "removed":
        return NOTHING
    here, name = addresses.device(device.id), device.name
    actions = []
    if device.state == "quarantined":
        actions.append(Action(f"{here}/release", "Release", of=name))
    if device.drained_at is not None:
        actions.append(Action(f"{here}/resume", "Give it work again", of=name))
    words = "Turn canary runs on" if device.canary_off else "Turn canary runs off"
    hidden = (("enabled", "yes" if device.canary_off else ""),)
    actions.append(Action(f"{here}/canary", words, hidden, of=name))
    sure = "Its credential stops working at once, for ever; what it measured stays. To come back it enrols anew."
    actions.append(Action(f"{here}/remove", "Remove", sure=sure, of=name, is_grave=True))
    return Doings(tuple(actions), _forms(device, facts, here))


def _forms(device: Device, facts: DeviceFacts, here: str) -> tuple[Form, ...]:
    why = Field("reason", "Why", "area", max_length=1000, hint="For people: it stands where runs wait for it")
    tags = Field(
        "tags",
        "Tags",
        value=" ".join(facts.tags),
        max_length=1000,
        hint="KEY or KEY=VALUE, a space between; runs ask for them with `where`",
    )
    name = Field(
        "name",
        "Name",
        value=device.name,
        required=True,
        max_length=100,
        hint="Letters, digits, spaces and ._:@+-; no other device of yours has it",
    )
    note = f"Its agent goes on calling itself {device.told_name}; what was measured stays with the device."
    forms = [
        Form("rename", "Name", f"{here}/rename", "Rename it", (name,), note),
        Form("tags", "Tags", f"{here}/tags", "Set the tags", (tags,)),
    ]
    if device.drained_at is None:
        note = "It finishes what it has, and gets nothing new."
        forms.append(Form("drain", "Drain", f"{here}/drain", "Drain it", (why,), note))
    if device.state == "active":
        note = "It gets no work until somebody releases it. What it works on now goes on."
        forms.append(Form("quarantine", "Quarantine", f"{here}/quarantine", "Quarantine it", (why,), note))
    return tuple(forms)


def tags_change(device: Device, typed: Typed) -> dict[str, object]:
    """Returns the tags to set and to take away so that the device has the tags that were typed."""
    tags = dict(part.partition("=")[::2] for part in typed.text("tags").split())
    return {"set": tags, "remove": [key for key in device.tags if key not in tags]}
