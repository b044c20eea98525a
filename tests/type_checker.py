"""How types and shapes are checked while the tests run: as beartype does it, and an int may stand where a float may."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
