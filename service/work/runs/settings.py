"""The API's form of `RunSettings`: its fields stand beside those of the request or view that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from pydantic import BaseModel, Field, create_model

from device_agents.wire import MODES, Mode, RunSettings, Setting, default_of, settings_of
from service.base.schemas import RequestBody, View

Model = TypeVar("Model", bound=BaseModel)


def settings_body(kind: type[RunSettings]) -> type[RequestBody]:
    """Returns a base for requests: every setting within its bounds, and with its default."""
    hints = get_type_hints(kind)
    fields = {
        name: _request_field(hints[name], setting, default_of(kind, name))
        for name, setting in settings_of(kind).items()
    }
    return _model("SettingsBody", RequestBody, {"mode": (Mode, default_of(kind, "mode")), **fields})


def settings_view(kind: type[RunSettings]) -> type[View]:
    """Returns a base for views: what the settings of a row are."""
    hints = get_type_hints(kind)
    fields = {name: (hints[name], Field(description=_words(setting))) for name, setting in settings_of(kind).items()}
    return _model("SettingsView", View, {"mode": (Mode, ...), **fields})


def _request_field(hint: Any, setting: Setting, default: Any) -> tuple[Any, Any]:
    limits: dict[str, Any] = {"gt": setting.above, "ge": setting.least, "le": setting.most}
    if setting.least is not None and setting.unused is not None:
        limits["ge"] = min(setting.least, setting.unused)
    inner = next((arm for arm in getattr(hint, "__args__", ()) if arm is not type(None)), hint)
    if inner is float:
        limits["allow_inf_nan"] = False
    bounds = Field(**{name: limit for name, limit in limits.items() if limit is not None})
    bounded: Any = Annotated[inner, bounds]
    return (bounded if inner is hint else bounded | None), Field(default=default, description=_words(setting))


def _words(setting: Setting) -> str:
    """Describes a setting: `Steps to train or measure; profile and train only`."""
    some = "" if set(setting.modes) >= set(MODES) else f"; {' and '.join(setting.modes)} only"
    return f"{setting.words[0].upper()}{setting.words[1:]}{some}" + (
        f" (null: {setting.absent})" if setting.absent else ""
    )


def _model(name: str, base: type[Model], fields: dict[str, Any]) -> type[Model]:
    model: type[Model] = create_model(name, __base__=base, **fields)
    return model


if TYPE_CHECKING:

    class SettingsBody(RequestBody):
        """Settings of a run as they are asked for."""

        mode: Mode

    class SettingsView(View):
        """Settings of a run as they are shown."""

        mode: Mode

else:
    SettingsBody, SettingsView = settings_body(RunSettings), settings_view(RunSettings)


def settings_in(body: SettingsBody, kind: type[RunSettings] = RunSettings) -> RunSettings:
    """Returns the settings that a request asks for, as far as its mode has them."""
    return kind(body.mode, **{name: getattr(body, name) for name in settings_of(kind)}).fitted()
