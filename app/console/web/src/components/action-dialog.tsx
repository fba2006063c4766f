import { useMutation } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useId, useState } from "react";
import { Dialog } from "./dialog";
import { ErrorNotice } from "./error-notice";

interface Props {
  title: string;
  submit: string;
  action: () => Promise<unknown>;
  onClose: () => void;
  children?: ReactNode;
  /** Name that the user has to type before a destructive action. */
  confirm?: string;
  disabled?: boolean;
}

/** Dialog with one action. It closes after the action's success and shows its error otherwise. */
export function ActionDialog({ title, submit, action, onClose, children, confirm, disabled = false }: Props) {
  const [typed, setTyped] = useState("");
  const mutation = useMutation({ mutationFn: action, onSuccess: onClose });
  const inputId = useId();
  const blocked = disabled || mutation.isPending || (confirm !== undefined && typed !== confirm);

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    if (!blocked) mutation.mutate();
  }

  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={onSubmit}>
        {children}
        {confirm !== undefined && (
          <div className="field">
            <label htmlFor={inputId}>
              Type <code>{confirm}</code> to confirm
            </label>
            <input id={inputId} autoComplete="off" value={typed} onChange={(event) => setTyped(event.target.value)} />
          </div>
        )}
        {mutation.error !== null && <ErrorNotice error={mutation.error} />}
        <footer>
          <button type="submit" className={confirm === undefined ? "primary" : "danger"} disabled={blocked}>
            {mutation.isPending ? "Working…" : submit}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
