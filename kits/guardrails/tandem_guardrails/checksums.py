"""Checks that tell an identifier from other digits: each says how many characters of a match count,
0 for none.
"""

from __future__ import annotations

from ipaddress import ip_address

# ISO 13616, IBAN registry (SWIFT): characters of an IBAN by country.
_IBAN_LENGTHS = {
    **dict.fromkeys(("NO",), 15),
    **dict.fromkeys(("BE",), 16),
    **dict.fromkeys(("DK", "FI", "FK", "FO", "GL", "NL", "SD"), 18),
    **dict.fromkeys(("MK", "SI"), 19),
    **dict.fromkeys(("AT", "BA", "EE", "KZ", "LT", "LU", "MN", "XK"), 20),
    **dict.fromkeys(("CH", "HR", "LI", "LV"), 21),
    **dict.fromkeys(("BG", "BH", "CR", "DE", "GB", "GE", "IE", "ME", "RS", "VA"), 22),
    **dict.fromkeys(("AE", "GI", "IL", "IQ", "OM", "SO", "TL"), 23),
    **dict.fromkeys(("AD", "CZ", "ES", "MD", "PK", "RO", "SA", "SE", "SK", "TN", "VG"), 24),
    **dict.fromkeys(("LY", "PT", "ST"), 25),
    **dict.fromkeys(("IS", "TR"), 26),
    **dict.fromkeys(("BI", "DJ", "FR", "GR", "IT", "MC", "MR", "SM"), 27),
    **dict.fromkeys(("AL", "AZ", "BY", "CY", "DO", "GT", "HN", "HU", "LB", "NI", "PL", "SV"), 28),
    **dict.fromkeys(("BR", "EG", "PS", "QA", "UA"), 29),
    **dict.fromkeys(("JO", "KW", "MU", "YE"), 30),
    **dict.fromkeys(("MT", "SC"), 31),
    **dict.fromkeys(("LC",), 32),
    **dict.fromkeys(("RU",), 33),
}


def credit_card(text: str) -> int:
    """13 to 19 digits whose last is the check digit of the others (Luhn, ISO/IEC 7812)."""
    digits = [int(character) for character in text if character.isdigit()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]
    valid = 13 <= len(digits) <= 19 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
    return len(text) if valid and any(digits) else 0


def iban(text: str) -> int:
    """As long as its country's are, with a remainder of 1 (ISO 7064, MOD 97-10). What comes after
    that length is not part of it.
    """
    length = _IBAN_LENGTHS.get(text[:2].upper())
    if length is None:
        return 0
    kept = ""
    for place, character in enumerate(text, 1):
        kept += character.strip()
        if len(kept) == length:
            number = "".join(str(int(symbol, 36)) for symbol in kept[4:] + kept[:4])
            ends = place == len(text) or not text[place].isalnum()
            return place if ends and int(number) % 97 == 1 else 0
    return 0


def ip(text: str) -> int:
    """An IPv4 or IPv6 address; of IPv6, not one as short as `a::b`, which is common in code."""
    try:
        version = ip_address(text).version
    except ValueError:
        return 0
    short = version == 6 and (len(text) < 6 or not any(map(str.isdigit, text)))
    return 0 if short else len(text)


def us_ssn(text: str) -> int:
    """Not of the numbers that are never given out: area 000, 666 or from 900 on, group 00, serial
    0000 (Social Security Administration).
    """
    area, group, serial = text[:3], text[4:6], text[7:]
    never = area in ("000", "666") or area >= "900" or group == "00" or serial == "0000"
    return 0 if never else len(text)


def phone(text: str) -> int:
    """7 to 15 digits (ITU-T E.164)."""
    return len(text) if 7 <= sum(map(str.isdigit, text)) <= 15 else 0
