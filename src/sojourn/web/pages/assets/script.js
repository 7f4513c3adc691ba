// What pages need of the browser: its zone and whether it is dark, numbers in units, and cells of tables.
// Texts of nodes are set as text, never as HTML.
(() => {
  const cookie = (name) => document.cookie.match(`(?:^|; )${name}=([^;]*)`)?.[1] ?? "";
  const keep = (name, value) => {
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = `${name}=${value}; Path=/; Max-Age=31536000; SameSite=Lax${secure}`;
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => ({ light: false, dark: true })[cookie("sojourn_theme")] ?? system.matches;

  const show = () => {
    keep("sojourn_dark", isDark() ? "1" : "0");
    document.documentElement.classList.toggle("dark", isDark());
  };

  const applied = cookie("sojourn_dark");
  keep("sojourn_zone", encodeURIComponent(Intl.DateTimeFormat().resolvedOptions().timeZone));
  show();
  document.documentElement.lang = "en";
  // The page was drawn for the other one: once, where nobody had asked yet.
  if (applied !== cookie("sojourn_dark") && isDark()) document.documentElement.dataset.redraw = "1";
  // Drawn anew is only what has charts, and never what is being left: a form that was sent would not arrive.
  const isDrawn = () => document.getElementById("nicegui-color-scheme") !== null;
  let isLeaving = false;
  addEventListener("beforeunload", () => (isLeaving = true));
  addEventListener("pageshow", () => (isLeaving = false));
  system.addEventListener("change", () => {
    show();
    if (!cookie("sojourn_theme") && isDrawn() && !isLeaving) location.reload();
  });

  const scaled = (value, steps) => {
    const [size, unit] = steps.find(([size]) => Math.abs(value) >= size) ?? steps[steps.length - 1];
    const number = value / size;
    const digits = Math.abs(number) >= 100 || Number.isInteger(number) ? 0 : Math.abs(number) >= 10 ? 1 : 2;
    return `${number.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits })} ${unit}`;
  };
  const durations = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const sizes = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
  const known = (shown) => (value) => (value === null || value === undefined ? "–" : shown(value));

  const duration = known((ns) => {
    if (Math.abs(ns) < 120e9) return scaled(ns, durations);
    const seconds = Math.round(ns / 1e9);
    if (Math.abs(seconds) < 7200) return `${Math.round(seconds / 60)} min`;
    return Math.abs(seconds) < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
  });
  const time = known((ns) =>
    new Date(ns / 1e6).toLocaleString("sv", { dateStyle: "short", timeStyle: "medium" }),
  );
  const units = { "": 1, ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9, min: 60e9, h: 3600e9, d: 86400e9, "%": 0.01,
    b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, kb: 1e3, mb: 1e6, gb: 1e9, k: 1e3, m: 1e6 };
  // A number with a unit, as a filter takes it: "5 ms" is 5000000.
  const parse = (text) => {
    const found = /^\s*(-?[0-9.]+)\s*([a-zµ%]*)\s*$/i.exec(text ?? "");
    const unit = found && units[found[2].toLowerCase()];
    return unit ? Number(found[1]) * unit : null;
  };
  window.sojourn = {
    duration,
    parse,
    time,
    bytes: known((size) => scaled(size, sizes)),
    count: known((value) => {
      const digits = Number.isInteger(value) ? 0 : 2; // those of one column line up
      return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
    }),
    number: known((value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 })),
    share: known((value) => {
      const percent = 100 * value;
      return `${percent === 0 || percent >= 10 ? percent.toFixed(percent === 0 ? 0 : 1) : percent.toPrecision(2)} %`;
    }),
    // Part of the address, so that what is seen can be shared.
    remember: (name, value) => {
      const here = new URL(location.href);
      here.searchParams.set(name, value);
      history.replaceState(history.state, "", here);
    },
    ago: known((ns) => `${duration(Math.max(0, Date.now() * 1e6 - ns))} ago`),
    // A link to a page about the row, within the range of time that this page shows.
    link: (page, fields) => (params) => {
      if (params.value === null || params.value === undefined) return "–";
      const asked = new URLSearchParams();
      for (const [name, field] of Object.entries(fields)) {
        const value = params.data[field];
        if (value !== null && value !== undefined) asked.append(name, value);
      }
      const here = new URLSearchParams(location.search);
      for (const name of ["from", "to"]) if (here.has(name) && !asked.has(name)) asked.append(name, here.get(name));
      const anchor = document.createElement("a");
      anchor.href = `${page}?${asked}`;
      anchor.textContent = params.valueFormatted ?? params.value;
      return anchor;
    },
    // Counts over time as steps, the largest beside them.
    trend: (params) => {
      const values = params.value ?? [], most = Math.max(...values, 0);
      const cell = document.createElement("span");
      cell.className = most ? "trend bad" : "trend";
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", `0 0 ${values.length} 10`);
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("aria-hidden", "true");
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const height = (value) => 9.5 - (most ? (9 * value) / most : 0);
      path.setAttribute("d", values.map((value, place) => `${place ? "L" : "M"}${place} ${height(value)}H${place + 1}`).join(""));
      path.setAttribute("vector-effect", "non-scaling-stroke");
      svg.append(path);
      const text = document.createElement("span");
      text.textContent = most ? `most ${most}` : "none";
      cell.append(svg, text);
      return cell;
    },
    state: (params) => {
      if (!params.value) return "–";
      const badge = document.createElement("span");
      badge.className = `badge ${String(params.value).replace(/[^a-z]/g, "-")}`;
      badge.textContent = params.value;
      return badge;
    },
  };

  document.addEventListener("change", (event) => {
    if (event.target.matches?.("[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("submit", (event) => {
    // Fields that were left empty do not belong into an address that is shared.
    if (event.target.method === "get")
      for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
  });
  document.addEventListener("click", async (event) => {
    const copied = event.target.closest?.("[data-copy]");
    if (copied) {
      const text = document.getElementById(copied.dataset.copy).textContent;
      await navigator.clipboard.writeText(text);
      copied.textContent = "Copied";
      setTimeout(() => (copied.textContent = "Copy"), 1500);
    }
    if (event.target.closest?.("[data-theme]")) {
      keep("sojourn_theme", isDark() ? "light" : "dark");
      location.reload();
    }
  });
  // Files go to the interface by way of the page's session; what is sent is counted while it is.
  const SEND = "/_sojourn/send/api/v1";
  const sent = (method, path, body, tell) =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open(method, SEND + path);
      if (typeof body === "string") request.setRequestHeader("Content-Type", "application/json");
      request.upload.onprogress = (event) => tell?.(event.loaded / (event.total || 1));
      request.onload = () => {
        let found = null;
        try {
          found = JSON.parse(request.responseText);
        } catch {}
        if (request.status < 300) resolve(found);
        else reject(new Error(found?.detail ?? request.responseText.slice(0, 300)));
      };
      request.onerror = () => reject(new Error("the connection was lost; try again"));
      request.send(body);
    });
  const chosen = (form, name) => form.elements[name]?.files?.[0];
  const uploads = {
    // One capture is looked at for round trips, two are compared.
    captures: async (form, tell) => {
      const [first, second] = [chosen(form, "sender"), chosen(form, "receiver")];
      const files = second ? { sender: first, receiver: second } : { capture: first };
      return measured(form, second ? "measure" : "rtt", files, tell);
    },
    trace: async (form, tell) => measured(form, "tomography", { trace: chosen(form, "trace") }, tell),
    topology: async (form, tell) => {
      const file = chosen(form, "file");
      const name = form.elements.name.value.trim() || file.name.replace(/\..*$/, "");
      const asked = new URLSearchParams({ file_name: file.name });
      if (form.elements.directed.value) asked.set("directed", form.elements.directed.value);
      await sent("PUT", `/topologies/${encodeURIComponent(name)}?${asked}`, file, (share) => tell("sending", share));
      return `/network?${new URLSearchParams({ name })}`;
    },
  };
  const measured = async (form, kind, files, tell) => {
    const asked = { kind, where: form.elements.where?.value ?? "", reverse: !!form.elements.reverse?.checked };
    const { id } = await sent("POST", "/uploads", JSON.stringify(asked));
    try {
      for (const [place, file] of Object.entries(files)) {
        const to = `/uploads/${id}/files/${place}?${new URLSearchParams({ name: file.name })}`;
        await sent("PUT", to, file, (share) => tell(`sending ${file.name}`, share));
      }
      await sent("POST", `/uploads/${id}/start`, "{}");
    } catch (error) {
      sent("DELETE", `/uploads/${id}`).catch(() => {});
      throw error;
    }
    return `${location.pathname}?${new URLSearchParams({ upload: id })}`;
  };
  document.addEventListener("submit", async (event) => {
    const form = event.target, upload = uploads[form.dataset.upload];
    if (!upload) return;
    event.preventDefault();
    const trouble = form.querySelector("[role=alert]"), status = form.querySelector(".progress");
    const [text, bar] = [status.querySelector("span"), status.querySelector("progress")];
    const tell = (what, share) => {
      text.textContent = `${what} … ${Math.round(100 * share)} %`;
      bar.value = share;
    };
    const button = form.querySelector("button[type=submit]");
    trouble.hidden = true;
    status.hidden = false;
    button.disabled = true;
    try {
      location.assign(await upload(form, tell));
    } catch (error) {
      trouble.textContent = error.message;
      trouble.hidden = false;
      status.hidden = true;
    }
    button.disabled = false;
  });
  document.addEventListener("click", async (event) => {
    const removed = event.target.closest?.("[data-remove]");
    if (!removed || !confirm(removed.dataset.sure)) return;
    try {
      await sent("DELETE", removed.dataset.remove);
    } catch (error) {
      if (!/there is no/.test(error.message)) return alert(error.message);
    }
    location.assign(removed.dataset.then);
  });
  // A page that has lost its connection may have lost its session: then signing in again is what helps.
  setInterval(async () => {
    if (document.getElementById("popup")?.ariaHidden !== "false") return;
    try {
      if ((await fetch("/_sojourn/session")).status === 401) location.reload();
    } catch {
      // The query unit does not answer: what shows the lost connection says so.
    }
  }, 3000);
  addEventListener("DOMContentLoaded", () => {
    if (document.documentElement.dataset.redraw && isDrawn()) location.reload();
  });
})();
