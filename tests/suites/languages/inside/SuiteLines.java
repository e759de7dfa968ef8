import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** `SuiteLines FILE CLASS...`: run the tests of JUnit classes, and write a line of the Test Anything Protocol for each. */
public final class SuiteLines extends RunListener {
    private final PrintStream lines;
    private final Map<Description, String> notPassed = new HashMap<>();

    private SuiteLines(PrintStream lines) {
        this.lines = lines;
    }

    public static void main(String[] arguments) throws Exception {
        JUnitCore core = new JUnitCore();
        core.addListener(new SuiteLines(new PrintStream(arguments[0])));
        for (int number = 1; number < arguments.length; number++) {
            core.run(Class.forName(arguments[number]));
        }
        System.exit(0);
    }

    @Override
    public void testFailure(Failure failure) {
        System.out.println(failure.getDescription() + "\n" + failure.getTrace());
        String text = String.valueOf(failure.getException()).replaceAll("\\s+", " ");
        if (failure.getDescription().isTest()) {
            notPassed.put(failure.getDescription(), "not ok - " + name(failure.getDescription()) + " # " + text);
        } else {
            lines.println("not ok - " + name(failure.getDescription()) + " # " + text);
        }
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        notPassed.put(failure.getDescription(), "ok - " + name(failure.getDescription()) + " # skip");
    }

    @Override
    public void testIgnored(Description test) {
        lines.println("ok - " + name(test) + " # skip");
    }

    @Override
    public void testFinished(Description test) {
        String line = notPassed.remove(test);
        lines.println(line == null ? "ok - " + name(test) : line);
        lines.flush();
    }

    private static String name(Description test) {
        return test.getDisplayName().replace('#', ' ');
    }
}
