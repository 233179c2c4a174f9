"""A window that shows images as they are made, with pygame."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

from starling.errors import UserError
from starling.tools.video import as_shown, package

if TYPE_CHECKING:  # at run time this would import torch, and a missing display is reported before that
    from starling.types import NDArray

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
_UNSEEN = ("offscreen", "dummy")
"""Drivers without a screen; SDL falls back to one of them when the display does not answer."""
_ADVICE = "record a video with --video, or log steps with --log, instead"


def check_display() -> None:
    """Raise `UserError` if no window can be opened here."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    pygame = package("pygame")
    if not any(map(os.environ.get, _DISPLAYS)):
        raise UserError(f"there is no display for --window (neither DISPLAY nor WAYLAND_DISPLAY is set): {_ADVICE}")
    try:
        pygame.display.init()
    except pygame.error as error:
        raise UserError(f"the display for --window cannot be used ({error}): {_ADVICE}") from None
    driver = pygame.display.get_driver()
    if driver in _UNSEEN and not os.environ.get("SDL_VIDEODRIVER"):
        pygame.display.quit()
        raise UserError(f"the display for --window cannot be used (SDL only found its driver {driver!r}): {_ADVICE}")


class Window:
    """A window of the size of its images, at `fps` images per second. A context manager."""

    def __init__(self, title: str, fps: float) -> None:
        check_display()
        self._pygame, self._fps = package("pygame"), fps
        self._clock: Any = self._pygame.time.Clock()
        self._pygame.display.set_caption(title)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pygame.display.quit()

    def show(self, picture: NDArray) -> bool:
        """Show an image [H, W, 3] when it is time; returns False if the user has closed the window."""
        image = as_shown(picture)
        size = (image.shape[1], image.shape[0])
        screen = self._pygame.display.get_surface()
        if screen is None or screen.get_size() != size:
            screen = self._pygame.display.set_mode(size)
        screen.blit(self._pygame.image.frombuffer(image.tobytes(), size, "RGB"), (0, 0))
        self._pygame.display.flip()
        self._clock.tick(self._fps)
        return not any(map(self._closes, self._pygame.event.get()))

    def _closes(self, event: Any) -> bool:
        pressed = event.type == self._pygame.KEYDOWN and event.key in (self._pygame.K_ESCAPE, self._pygame.K_q)
        return pressed or event.type == self._pygame.QUIT
