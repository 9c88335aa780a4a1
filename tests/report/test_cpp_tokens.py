"""Tokens of C++: what a comment or another layout leaves as it is, and what an edit changes."""

import pytest
from katt_report.published.cpp_tokens import code_digest, token_hash, tokens

SAME = {
    "comments": ("int a = 1; /* one\n two */ int b;  // c\n", "int a=1;int b;"),
    "a comment between tokens": ("int/**/a;", "int a;"),
    "layout": ("f( a,\n   b );\n", "f(a, b);"),
    "lines that go on": ("int val\\\nue = 1 + \\\n 2;", "int value = 1 + 2;"),
    "a comment that goes on": ("int a; // b \\\nint c;\nint d;", "int a;\nint d;"),
    "ends of lines of Windows": ("int a;\r\n#define B \\\r\n 1\r\n", "int a;\n#define B 1\n"),
    "a directive": ("  #  define  F( x )  x\n", "#define F(x) x\n"),
    "a comment that begins in a directive": ("#define F 1 /* a\n b */\nint c;", "#define F 1\nint c;"),
    "a quote in a comment": ("int a; // don't\nint b; /* \" */", "int a; int b;"),
}
DIFFERENT = {
    "a name": ("int a;", "int b;"),
    "a number": ("a = 1.5e-3f;", "a = 1.5e-2f;"),
    "a separator of digits": ("a = 1'000;", "a = 1'001;"),
    "an operator": ("a >> b;", "a > > b;"),
    "words that grow together": ("int a;", "inta;"),
    "spaces in a text": ('f("a  b");', 'f("a b");'),
    "a comment in a text": ('f("a // b");', 'f("a");'),
    "the end of a text": ('f("a\\"/*", b); /**/', 'f("a\\"", b); /**/'),
    "a character": ("a = '\\'';", "a = '\"';"),
    "spaces in a raw text": ('R"(a\n b)"', 'R"(a\nb)"'),
    "a comment in a raw text": ('R"x(a /* )" */ b)x"', 'R"x(a /* )" b)x"'),
    "a backslash in a raw text": ('R"(a\\\nb)"', 'R"(ab)"'),
    "the end of a directive": ("#define A b\nc", "#define A b c"),
    "parameters of a macro": ("#define F(x) x\n", "#define F (x) x\n"),
    "a prefix": ('u8"a"', 'u"a"'),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_the_same_code(pair):
    assert tokens(pair[0]) == tokens(pair[1])
    assert token_hash(pair[0]) == token_hash(pair[1])


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_other_code(pair):
    assert token_hash(pair[0]) != token_hash(pair[1])


def test_tokens_are_those_of_the_language():
    assert tokens("x->*y<<=.5f+a::b...") == ["x", "->*", "y", "<<=", ".5f", "+", "a", "::", "b", "..."]
    assert tokens('L"a\\"b" R"(")" \'"\'') == ['L"a\\"b"', 'R"(")"', "'\"'"]
    assert tokens("1.5e-3 - 0x1p+4-1") == ["1.5e-3", "-", "0x1p+4", "-", "1"]
    assert tokens("") == [] and tokens('"open') == ['"', "open"]


def test_the_name_of_code_is_that_of_its_files():
    one = {"a.hpp": token_hash("int a;"), "b.hpp": token_hash("int b;")}
    assert code_digest(one) == code_digest(dict(reversed(one.items())))
    assert (
        len({code_digest(files) for files in (one, {"a.hpp": one["a.hpp"]}, {"c.hpp": one["a.hpp"], **one}, {})}) == 4
    )
    assert len(code_digest(one)) == 16
