// Package printable makes text from tasks, agents and clients safe to print: on a terminal, in a
// log, in an error, in a cell of a spreadsheet. A cgroup may have any bytes as its name, and a
// reply or an incident any text: escape codes that rewrite the screen, line breaks that look like
// another machine's reply, marks that reverse the direction of writing, bytes that are no UTF-8.
//
// Text is for one value within a line, Lines for text that may have several lines, and NewWriter
// for a terminal: nothing that was forgotten gets through it. The names of tasks have a printed
// form that can be read back (sample.TaskName).
package printable

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns a text for use within a line: characters that are not graphic are escaped, and so
// are line breaks and tabs.
func Text(s string) string { return escape(s, odd) }

// Lines is Text for several lines.
func Lines(s string) string { return escape(s, oddInLines) }

// ASCII is Text with every character outside ASCII escaped too.
func ASCII(s string) string {
	return escape(s, func(r rune) bool { return odd(r) || r > unicode.MaxASCII })
}

func odd(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) }

func oddInLines(r rune) bool { return r != '\n' && r != '\t' && odd(r) }

func escape(s string, odd func(rune) bool) string {
	if strings.IndexFunc(s, odd) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if odd(r) {
			appendEscaped(&b, r, s[i:i+n])
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// appendEscaped writes a character as JSON does, so that an encoded document stays one, except
// for bytes and control characters that no JSON has.
func appendEscaped(b *strings.Builder, r rune, bytes string) {
	switch {
	case r == utf8.RuneError && len(bytes) == 1: // no UTF-8
		b.WriteString(`\x` + strconv.FormatUint(uint64(bytes[0])|0x100, 16)[1:])
	case r < 0x20:
		quoted := strconv.QuoteRuneToASCII(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	case r > 0xffff:
		high, low := utf16.EncodeRune(r)
		b.WriteString(`\u` + strconv.FormatUint(uint64(high), 16) + `\u` + strconv.FormatUint(uint64(low), 16))
	default:
		b.WriteString(`\u` + strconv.FormatUint(uint64(r)|0x10000, 16)[1:])
	}
}

// Cell returns a text for a CSV file: Lines, and inert in a spreadsheet, which takes a cell that
// begins with = + - or @ for a formula. Numbers stay as they are.
func Cell(s string) string {
	s = Lines(s)
	if s == "" || !strings.ContainsRune("=+-@\t", rune(s[0])) {
		return s
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return s
	}
	return "'" + s
}

// Writer passes on what is printable and escapes the rest, as Lines.
type Writer struct {
	to   io.Writer
	part []byte // the beginning of a character, to be completed by the next Write
}

// NewWriter returns a Writer.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// styles are the control sequences that quell itself writes into text: colours and weights. None
// of them hides or moves anything.
var styles = [...]string{"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	all := p
	if len(w.part) > 0 {
		all = append(w.part, p...)
		w.part = nil
	}
	if end := len(all) - incomplete(all); end < len(all) {
		w.part, all = bytes.Clone(all[end:]), all[:end]
	}
	var b strings.Builder
	for rest := string(all); rest != ""; {
		text, _, styled := strings.Cut(rest, "\x1b")
		b.WriteString(Lines(text))
		if !styled {
			break
		}
		rest = rest[len(text):]
		n := styleAt(rest)
		if n == 0 {
			n = 1
			b.WriteString(Lines(rest[:1]))
		} else {
			b.WriteString(rest[:n])
		}
		rest = rest[n:]
	}
	if _, err := io.WriteString(w.to, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// styleAt is the length of the style at the beginning of s; 0 if there is none.
func styleAt(s string) int {
	for _, style := range styles {
		if strings.HasPrefix(s, style) {
			return len(style)
		}
	}
	return 0
}

// incomplete is the number of bytes at the end that may begin a character.
func incomplete(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if c := p[len(p)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// Raw returns the writer below a Writer, for control sequences of quell's own, such as those of a
// line that is drawn again; any other writer is returned as it is.
func Raw(w io.Writer) io.Writer {
	if p, ok := w.(*Writer); ok {
		return p.to
	}
	return w
}
