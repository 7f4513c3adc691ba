// Tables that are wider than the page can be moved by keys, too; the theme wraps them when the page is there.
document$.subscribe(() =>
  requestAnimationFrame(() => {
    for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
      wrap.tabIndex = 0;
      wrap.setAttribute("role", "region");
      wrap.setAttribute("aria-label", "Table");
    }
  }),
);
