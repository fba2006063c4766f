import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { endSession } from "./session";

const IDLE_MS = 3_600_000;
const CHECK_MS = 30_000;
/** Input is noted at most this often. */
const NOTE_MS = 5_000;
const INPUTS = ["pointerdown", "keydown", "wheel", "touchmove"] as const;
/** Time of the last input on any page of the console in this browser. */
const STORED = "tenora-last-input";

/**
 * Sign out after an hour without input.
 *
 * The server ends a session after an hour without requests. Open pages refresh their data, so it would not end by that.
 */
export function useIdleEnd(): void {
  const client = useQueryClient();

  useEffect(() => {
    note();
    const onInput = () => {
      if (sinceInputMs() > NOTE_MS) note();
    };
    const check = () => {
      // An upload may take hours.
      if (client.isMutating() > 0) note();
      else if (sinceInputMs() >= IDLE_MS) endSession(client).catch(() => undefined);
    };
    for (const name of INPUTS) addEventListener(name, onInput, { capture: true, passive: true });
    const timer = setInterval(check, CHECK_MS);
    return () => {
      for (const name of INPUTS) removeEventListener(name, onInput, { capture: true });
      clearInterval(timer);
    };
  }, [client]);
}

function note(): void {
  localStorage.setItem(STORED, String(Date.now()));
}

function sinceInputMs(): number {
  return Date.now() - Number(localStorage.getItem(STORED));
}
