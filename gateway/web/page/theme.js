"use strict";
// Runs before the first paint, so that a chosen theme does not flash.
{
  const theme = localStorage.getItem("muster.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
