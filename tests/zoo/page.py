from pathlib import Path


def write_page(folder: Path, page: Path) -> None: ...
