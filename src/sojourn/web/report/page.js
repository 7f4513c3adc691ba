// The report's page: charts in the theme of the reader, tables that are sorted and filtered. Data is only ever text.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const ROWS = 100; // on a page of a table

  // --- Numbers, as the charts' axes write them.
  const STEPS = {
    ns: [[1e9, " s"], [1e6, " ms"], [1e3, " µs"], [1, " ns"]],
    B: [[2 ** 40, " TiB"], [2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"], [1, " B"]],
    share: [[0.01, " %"]],
  };
  const plain = new Intl.NumberFormat("en", {maximumSignificantDigits: 6});
  const whole = new Intl.NumberFormat("en");
  const two = (number) => String(number).padStart(2, "0");
  const shownTime = (ns) => {
    const at = new Date(ns / 1e6);
    return at.getFullYear() + "-" + two(at.getMonth() + 1) + "-" + two(at.getDate()) + " " + two(at.getHours()) + ":" +
      two(at.getMinutes()) + ":" + two(at.getSeconds()) + "." + String(at.getMilliseconds()).padStart(3, "0");
  };

  function shown(value, unit) {
    if (value === null) return "–";
    if (unit === "time_ns") return shownTime(value);
    if (unit === "id") return String(value);
    const steps = STEPS[unit];
    if (!steps) return (Number.isInteger(value) ? whole : plain).format(value).replace("-", "−");
    if (value === 0) return "0" + (unit === "share" ? " %" : "");
    const step = steps.find((each) => Math.abs(value) >= each[0]) || steps[steps.length - 1];
    const scaled = value / step[0];
    const digits = Math.abs(scaled) >= 100 ? 0 : Math.abs(scaled) >= 10 ? 1 : 2;
    return scaled.toFixed(digits).replace("-", "−") + step[1];
  }

  // --- Themes.
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";

  function themed(value, dark, isColour) {
    if (Array.isArray(value)) return value.map((each) => themed(each, dark, isColour));
    if (value !== null && typeof value === "object") {
      if (Number.isInteger(value.$function)) return FUNCTIONS[value.$function];
      const result = {};
      for (const key of Object.keys(value)) result[key] = themed(value[key], dark, /color$/i.test(key));
      return result;
    }
    return dark && isColour && typeof value === "string" && Object.hasOwn(data.dark, value) ? data.dark[value] : value;
  }

  // --- Charts.
  const charts = [...document.querySelectorAll("[data-chart]")].map((place) =>
    ({place, option: data.charts[Number(place.dataset.chart)], view: echarts.init(place, null, {renderer: "canvas"})}));
  function draw(dark) {
    for (const chart of charts) chart.view.setOption(themed(chart.option, dark, false), {notMerge: true});
  }
  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) charts.find((each) => each.place === entry.target).view.resize();
  });
  for (const chart of charts) sizes.observe(chart.place);
  draw(isDark());

  const button = document.getElementById("theme");
  function name() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Change to " + (isDark() ? "light" : "dark") + " colours");
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    draw(isDark());
  });
  prefersDark.addEventListener("change", () => { name(); draw(isDark()); });
  name();

  // Paper is white: print in light colours.
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    draw(false);
    for (const chart of charts) chart.view.resize();
  });
  addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme; else root.dataset.theme = before;
    draw(isDark());
  });

  // --- Times in the reader's zone.
  for (const time of document.querySelectorAll("time[data-ns]")) time.textContent = shownTime(Number(time.dataset.ns));
  document.getElementById("zone").textContent = "Times are in the zone " + Intl.DateTimeFormat().resolvedOptions().timeZone;

  // --- Tables.
  function element(kind, properties, ...children) {
    const made = Object.assign(document.createElement(kind), properties);
    made.append(...children);
    return made;
  }

  class Table {
    constructor(place) {
      this.place = place;
      this.name = place.dataset.rows;
      const table = data.tables[Number(place.dataset.table)];
      this.columns = table.columns;
      this.order = Array.from({length: table.count}, (_, row) => row);
      this.rows = this.order;
      this.page = 0;
      this.sorted = {column: null, down: true};
      this.haystack = null;
      this.build(document.getElementById("table" + place.dataset.table).textContent);
      this.fill();
    }

    build(title) {
      this.filter = element("input", {type: "search", placeholder: "Filter " + this.name, autocomplete: "off"});
      this.filter.setAttribute("aria-label", "Filter " + this.name);
      this.filter.addEventListener("input", () => { this.page = 0; this.select(); this.fill(); });
      this.back = element("button", {type: "button", textContent: "‹", onclick: () => this.turn(-1)});
      this.back.setAttribute("aria-label", "Previous " + this.name);
      this.next = element("button", {type: "button", textContent: "›", onclick: () => this.turn(1)});
      this.next.setAttribute("aria-label", "Next " + this.name);
      this.state = element("output", {});
      const heads = this.columns.map((column, place) => {
        const head = element("th", {scope: "col", className: column.texts ? "text" : "number"});
        head.append(element("button", {type: "button", textContent: column.title, onclick: () => this.sort(place)}));
        return head;
      });
      this.heads = heads;
      this.body = element("tbody", {});
      const scroll = element("div", {className: "scroll", tabIndex: 0},
        element("table", {}, element("thead", {}, element("tr", {}, ...heads)), this.body));
      scroll.setAttribute("role", "region");
      scroll.setAttribute("aria-label", title);
      this.place.replaceChildren(
        element("div", {className: "tools"}, element("label", {}, this.filter),
          element("div", {className: "pages"}, this.state, this.back, this.next)),
        scroll);
    }

    value(column, row) { return column.texts ? column.texts[column.values[row]] : column.values[row]; }

    sort(place) {
      const column = this.columns[place];
      // Numbers begin with the largest, texts with A.
      const down = this.sorted.column === place ? !this.sorted.down : !column.texts;
      this.sorted = {column: place, down};
      const sign = down ? -1 : 1;
      let rank = column.values;
      if (column.texts) {
        const compare = new Intl.Collator("en", {numeric: true}).compare;
        const places = column.texts.map((_, at) => at).sort((a, b) => compare(column.texts[a], column.texts[b]));
        const ranks = new Array(places.length);
        places.forEach((at, number) => { ranks[at] = number; });
        rank = column.values.map((at) => column.texts[at] === "" ? null : ranks[at]);
      }
      // What is missing comes last either way; equals stay in their order.
      this.order = Array.from({length: column.values.length}, (_, row) => row).sort((a, b) => {
        const x = rank[a], y = rank[b];
        return x === null ? (y === null ? 0 : 1) : y === null ? -1 : sign * (x - y);
      });
      this.heads.forEach((head, at) => {
        if (at === place) head.setAttribute("aria-sort", down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      this.page = 0;
      this.select();
      this.fill();
    }

    select() {
      const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) { this.rows = this.order; return; }
      if (!this.haystack) {
        const texts = this.columns.filter((column) => column.texts || column.unit === "id");
        this.haystack = this.order.map(() => "");
        for (let row = 0; row < this.haystack.length; row++)
          this.haystack[row] = texts.map((column) => this.value(column, row)).join(" ").toLowerCase();
      }
      this.rows = this.order.filter((row) => words.every((word) => this.haystack[row].includes(word)));
    }

    turn(by) { this.page += by; this.fill(); this.place.querySelector(".scroll").scrollTop = 0; }

    fill() {
      const pages = Math.max(1, Math.ceil(this.rows.length / ROWS));
      this.page = Math.min(Math.max(this.page, 0), pages - 1);
      const first = this.page * ROWS, some = this.rows.slice(first, first + ROWS);
      this.body.replaceChildren(...some.map((row) => element("tr", {}, ...this.columns.map((column) => {
        const value = this.value(column, row);
        if (column.texts) return element("td", {className: "text", textContent: value, title: value.length > 48 ? value : ""});
        return element("td", {className: value === null ? "number missing" : "number", textContent: shown(value, column.unit)});
      }))));
      this.state.textContent = !this.rows.length ? "No " + this.name + (this.filter.value ? " match the filter" : "")
        : whole.format(first + 1) + "–" + whole.format(first + some.length) + " of " + whole.format(this.rows.length) +
          " " + this.name;
      this.back.disabled = this.page === 0;
      this.next.disabled = this.page === pages - 1;
    }
  }
  for (const place of document.querySelectorAll("[data-table]")) new Table(place);
})();
