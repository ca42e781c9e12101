//go:build browser

package render

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// browse opens a report in a real browser. complaints returns the browser's messages and
// its network requests.
func browse(t *testing.T, r *Report) (ctx context.Context, complaints func() []string) {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if p, err := exec.LookPath(name); err == nil && program == "" {
			program = p
		}
	}
	if program == "" {
		quelltest.Skip(t, "chromium", errors.New("no chromium on PATH: apt-get install chromium"))
	}
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(htmlOf(t, r)), 0o644); err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	var mu sync.Mutex
	var said []string
	ctx, closeTab := chromedp.NewContext(ctx, chromedp.WithListener(func(e any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := e.(type) {
		case *log.EventEntryAdded:
			said = append(said, e.Entry.Text)
		case *runtime.EventConsoleAPICalled:
			said = append(said, fmt.Sprint("console: ", e.Type))
		case *runtime.EventExceptionThrown:
			said = append(said, e.ExceptionDetails.Text)
		case *network.EventRequestWillBeSent:
			if u := e.Request.URL; !strings.HasPrefix(u, "file://") && !strings.HasPrefix(u, "data:") {
				said = append(said, "request: "+u)
			}
		}
	}))
	t.Cleanup(func() { closeTab(); stop() })
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(cancel)
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	if err == nil {
		_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	}
	if err == nil {
		err = chromedp.Do(ctx, chromedp.Navigate("file://"+file))
	}
	if err != nil {
		t.Fatal(err)
	}
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return said
	}
}

// everything is a report with all kinds of exhibits.
func everything(t *testing.T) *Report {
	r := simulate(t, stairs)
	other := simulate(t, pairs)
	r.Study.Analysis = append(r.Study.Analysis, other.Study.Analysis...)
	for _, kind := range []string{"correlation", "mapping", "dose-response", "signal-validity"} {
		a := other.Study.Analysis[0]
		a.Kind = kind
		r.Study.Analysis = append(r.Study.Analysis, a)
	}
	r.Results.Degradations = other.Results.Degradations
	r.Runs = append(r.Runs, other.Runs...)
	names := []string{"degradation", "L1D misses", "L2 misses", "LLC misses", "DTLB misses", "instructions", "core cycles", "reference cycles"}
	m := analyse.Matrix{}
	var n [][]int
	for i := range names {
		row, counts := make([]stat.Float, len(names)), make([]int, len(names))
		for j := range names {
			row[j], counts[j] = stat.Float(math.Cos(float64(i+j))), 4
		}
		m, n = append(m, row), append(n, counts)
	}
	r.Results.Correlations = []analyse.Correlations{{Names: names, PerVM: m, Pooled: m, Spearman: m, P: m, Q: m, VMs: n, N: 40}}
	r.Results.Mappings = []analyse.MappingResult{{Set: "workloads=WL1", Average: 20, Interval: noBounds(20), Worst: 50, WorstInterval: noBounds(50), WorstOf: "vm1 (mcf)", Mappings: 3,
		Parts: []analyse.MappingPart{{Part: "vm1", Workload: "mcf", Percent: map[string]float64{"0+1|2+3": 0, "0+2|1+3": 10, "0+3|1+2": 50}, Average: 20, Worst: 50}}}}
	r.Results.Doses = []analyse.Dose{{Part: "fg", State: "busy", Points: []analyse.DosePoint{{Neighbours: 0, Value: noBounds(10)}, {Neighbours: 4, Value: noBounds(7)}}, PerNeighbour: noBounds(-7.5),
		Full: noBounds(43), First: noBounds(13.2), Second: noBounds(8), Knee: &analyse.Knee{Before: 2, After: 3, Step: noBounds(25.22)}}}
	r.Results.DoseContrasts = []analyse.DoseContrast{{Part: "fg", Of: "busy", Over: "idle", By: "neighbours", Points: []analyse.ContrastPoint{{At: 4, Longer: noBounds(40)}}}}
	r.Results.Validities = []analyse.Validity{{Signal: "cpi", Part: "fg", Workload: "a", Pearson: analyse.Interval{Value: 0.97, Low: 0.9, High: 0.99}, Spearman: analyse.Interval{Value: 0.9, Low: 0.7, High: 0.97}, P: 0.001, N: 12}}
	x := Expectations{Source: "paper", Stamps: []string{"simulated"}, Expect: []Expectation{{Name: "a long name of what the paper has in one of its tables", Analysis: "interference", Quantity: "metric"}}}
	r.Checks = x.Against(&r.Results)
	return r
}

// measure is a script that measures a page: how far it extends beyond the screen, the
// smallest drawn text of plots, and the least contrast of text with its background (WCAG
// 2.2, relative luminance).
const measure = `(() => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = css => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)]; return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
  let least = [99, ''], line = [99, ''];
  for (const e of document.querySelectorAll('td, th, p, h1, h2, a, caption, figcaption, summary, li, strong, svg text')) {
    const style = getComputedStyle(e);
    const c = contrast(rgb(e.namespaceURI.endsWith('svg') ? style.fill : style.color), behind(e));
    if (c < least[0]) least = [c, e.outerHTML.slice(0, 80)];
  }
  for (const e of document.querySelectorAll('figure > svg .line, figure > svg .mark, figure > svg .bar')) {
    if (e.classList.contains('stair')) continue;
    const style = getComputedStyle(e);
    const c = contrast(rgb(e.classList.contains('bar') ? style.fill : style.stroke), behind(e));
    if (c < line[0]) line = [c, e.outerHTML.slice(0, 80)];
  }
  const texts = [...document.querySelectorAll('figure > svg text')].map(e => e.getBoundingClientRect().height);
  const outside = [...document.querySelectorAll('figure > svg text')].filter(e => {
    const t = e.getBoundingClientRect(), s = e.ownerSVGElement.getBoundingClientRect();
    return t.left < s.left - 1 || t.right > s.right + 1;
  }).map(e => e.textContent);
  return {beyond: document.documentElement.scrollWidth - document.documentElement.clientWidth, text: Math.min(...texts), texts: texts.length,
    contrast: least[0], faint: least[1], line: line[0], faintLine: line[1], outside: [...new Set(outside)].slice(0, 5),
    // A table that is wider than its box must be one that scrolls.
    stuck: [...document.querySelectorAll('table')].filter(e => e.scrollWidth > e.parentElement.clientWidth + 1 && getComputedStyle(e.parentElement).overflowX !== 'auto').length,
    dark: light(rgb(getComputedStyle(document.documentElement).backgroundColor)) < 0.1, unnamed: [...document.querySelectorAll('figure > svg')].filter(e => !e.getAttribute('aria-label')).length};
})()`

type measured struct {
	Beyond    float64  `json:"beyond"`
	Text      float64  `json:"text"`
	Texts     int      `json:"texts"`
	Contrast  float64  `json:"contrast"`
	Faint     string   `json:"faint"`
	Line      float64  `json:"line"`
	FaintLine string   `json:"faintLine"`
	Outside   []string `json:"outside"`
	Stuck     int      `json:"stuck"`
	Dark      bool     `json:"dark"`
	Unnamed   int      `json:"unnamed"`
}

// looks sets the width of the screen and the colour scheme, and measures the page.
func looks(ctx context.Context, width int64, media, scheme string) (measured, error) {
	err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900))
	if err == nil {
		_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: media,
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	}
	if err != nil {
		return measured{}, err
	}
	return chromedp.Run(ctx, chromedp.Evaluate[measured](measure))
}

func TestInABrowser(t *testing.T) {
	ctx, complaints := browse(t, everything(t))
	for _, width := range []int64{390, 768, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			m, err := looks(ctx, width, "screen", scheme)
			if err != nil {
				t.Fatal(err)
			}
			shot, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
			if err != nil {
				t.Fatal(err)
			}
			keep(t, fmt.Sprintf("report-%d-%s.png", width, scheme), shot)
			name := fmt.Sprintf("%d px, %s", width, scheme)
			t.Logf("%s: contrast %.1f of text, %.1f of lines, least text %.1f px high", name, m.Contrast, m.Line, m.Text)
			if m.Beyond > 0 || m.Stuck > 0 {
				t.Errorf("%s: the page reaches %g px beyond the screen, %d tables do", name, m.Beyond, m.Stuck)
			}
			if m.Contrast < 4.5 || m.Line < 3 {
				t.Errorf("%s: contrast %.2f of %s, %.2f of %s", name, m.Contrast, m.Faint, m.Line, m.FaintLine)
			}
			if m.Texts == 0 || m.Text < 9 || len(m.Outside) > 0 || m.Unnamed > 0 {
				t.Errorf("%s: of %d texts in plots the smallest is %g px, cut off are %q; %d plots have no name", name, m.Texts, m.Text, m.Outside, m.Unnamed)
			}
			if m.Dark != (scheme == "dark") {
				t.Errorf("%s: dark is %t", name, m.Dark)
			}
		}
	}
	if c := complaints(); len(c) > 0 {
		t.Errorf("the browser says: %q", c)
	}
}

// In print it is light, and nothing extends beyond the edge.
func TestInPrint(t *testing.T) {
	ctx, _ := browse(t, everything(t))
	m, err := looks(ctx, 700, "print", "dark") // about A4 without its margins, at 96 dpi
	if err != nil {
		t.Fatal(err)
	}
	pdf, err := chromedp.Run(ctx, chromedp.PrintToPDF(func(p *cdpage.PrintToPDFParams) { p.PrintBackground = new(true) }))
	if err != nil {
		t.Fatal(err)
	}
	keep(t, "report.pdf", pdf)
	if m.Dark || m.Beyond > 0 || m.Contrast < 4.5 || m.Line < 3 {
		t.Errorf("dark %t, %g px beyond the edge, contrast %.2f of %s, %.2f of %s", m.Dark, m.Beyond, m.Contrast, m.Faint, m.Line, m.FaintLine)
	}
	if len(pdf) < 1000 {
		t.Errorf("a PDF of %d bytes", len(pdf))
	}
}

// keep saves the browser's output in the folder QUELL_TEST_PAGES, for inspection by
// people.
func keep(t *testing.T, name string, content []byte) {
	if dir := os.Getenv("QUELL_TEST_PAGES"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Error(err)
		}
	}
}
