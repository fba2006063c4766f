import { type ReactNode, useId, useLayoutEffect, useRef } from "react";

/** Modal dialog. The browser keeps the focus inside, closes it by Escape, and returns the focus after it. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const titleId = useId();

  // A layout effect ends while the dialog is still in the page: only then does closing it return the focus.
  useLayoutEffect(() => {
    const element = dialog.current;
    element?.showModal();
    return () => element?.close();
  }, []);

  return (
    <dialog ref={dialog} aria-labelledby={titleId} onCancel={onClose}>
      <header>
        <h2 id={titleId}>{title}</h2>
        <button type="button" className="small" onClick={onClose}>
          Close
        </button>
      </header>
      {children}
    </dialog>
  );
}
